"""Arrays of numpy (``.npy``, ``.npz``), with words in a text file beside them."""
