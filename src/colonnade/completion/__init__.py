"""Completing the records that a party lacks: the shared layout, local generators and federated imputation."""
