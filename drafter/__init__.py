"""The drafter: runs ahead and proposes tokens. It decides nothing, so nothing it does can change a text's law."""
