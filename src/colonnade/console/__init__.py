"""Web consoles for this machine's browser: a party's requests, budget, ledger, transcript and runs; the coordinator's
queue.

operators    who may decide for a party, each with a password
operator     what an operator may see and decide, read from the party's folder while the party serves
layout       the frame of every page: style, navigation, the one script
pages        overview, budget, ledger, transcript, runs; and what all pages share
requests     the requests, and one with its plan in plain words and the decision
server       who gets in: loopback only, a one-time link, no other site
party        a party's console: which page is where
coordinator  the coordinator's: the queue, and a form that asks for a job
"""
