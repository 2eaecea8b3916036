"""The experiments of the chapters: one module per chapter, and nothing that two of them share."""
