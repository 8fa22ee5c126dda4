"""The analyses of the paper: rare and unseen words, word sense, the size of the corpus."""
