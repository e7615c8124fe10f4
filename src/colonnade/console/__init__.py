"""The operator's web console: one party's requests, budget, ledger, transcript and runs, for this machine's browser.

desk      what the operator may see and decide, read from the party's folder while the party serves
figures   the budget and the progress of a run as inline SVG
layout    the frame of every page: style, navigation, the one script
parts     what several pages share
requests  the requests, and one with its plan in plain words and the decision
pages     overview, budget, ledger, transcript, runs
server    who gets in: loopback only, a one-time link, no other site
"""
