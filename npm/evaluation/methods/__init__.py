"""Methods that answer examples: retrieval, language models, baselines; `registry` knows them by name."""
