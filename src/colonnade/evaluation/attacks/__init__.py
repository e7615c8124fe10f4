"""The refuting attacks, one module for each kind of mechanism; `catalogue` says which method is attacked how.

Each takes the product's own noise, cost and layout, and a `Planted` bug to show that it would notice one. The tests
under tests/privacy and `colonnade audit` run the same code.
"""
