"""Studies of pretraining: they import the package, which imports nothing of them."""
