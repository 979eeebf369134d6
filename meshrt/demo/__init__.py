"""`meshrt demo`: trains a small language model on this machine's own Python sources and shows what it cost."""
