"""The notebook machine: one bilingual source per chapter in, two notebooks with their outputs out."""
