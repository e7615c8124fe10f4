"""The operator's web console: one party's requests, budget, ledger, transcript and runs, for this machine's browser.

desk      what the operator may see and decide, read from the party's folder while the party serves
figures   the budget and the progress of a run as inline SVG
layout    the frame of every page: style, navigation, the one script
pages     one function for each page
server    who gets in: loopback only, a one-time link, no other site
"""
