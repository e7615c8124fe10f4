"""The operator's web console: one party's requests, budget, ledger, transcript and runs, for this machine's browser.

operator  what the operator may see and decide, read from the party's folder while the party serves
layout    the frame of every page: style, navigation, the one script
pages     overview, budget, ledger, transcript, runs; and what all pages share
requests  the requests, and one with its plan in plain words and the decision
server    who gets in: loopback only, a one-time link, no other site
"""
