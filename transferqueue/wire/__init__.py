"""What travels: the message format, and the codecs of each kind of column."""
