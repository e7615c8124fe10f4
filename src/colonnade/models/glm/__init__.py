"""Logistic and Poisson regression over parties that each hold some of the columns, with weights for missing blocks.

Read in this order: `fit`, `newton`, `weights`, `scores`, `expansion`, `result`.
"""
