"""What answers an example: retrieval, language models, baselines; `registry` knows them by name."""
