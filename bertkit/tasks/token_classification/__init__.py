"""Token classification: a tag for every word, as in NER, slot filling and part of speech (Devlin et al., 2019, section 5.3)."""
