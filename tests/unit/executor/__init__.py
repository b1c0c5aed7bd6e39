"""The executor model, sentence by sentence of its founding document, over every engine."""
