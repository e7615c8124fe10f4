"""The paper's federated EM for linear regression with missing blocks: `VFEM`.

Read in this order: `method`, `model`, `block`, `steps`, `information`.
"""
