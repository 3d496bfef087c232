"""Where the bytes are: a page of byte verbs, and the places that keep them."""
