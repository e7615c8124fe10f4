"""Linear regression from incomplete records: `Regress`, its procedures with and without noise, and its result.

Read in this order: `regress`, `estimate`, `private`, `factored`, `gaussian`, `result`, `attacks`.
"""
