"""What people see of a run, and how good a synthetic table is.

privacy                what a run's costs mean for one person, in numbers and in words
report                 report.html of a run, and one page for several runs
story                  the demo's page
missingness            which blocks are missing
fidelity, efficacy     how near one table is to another, and what it is worth to an analyst
comparison             a synthetic table beside the truth of a simulation, a party's own block, several parties' data
"""
