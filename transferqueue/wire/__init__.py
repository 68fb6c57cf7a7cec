"""What travels: the message format, dtypes by name, and the codecs of each kind of column."""
