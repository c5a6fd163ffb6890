"""The CVC format (``.cvc``): chunks of vectors as fp16, int8 or lossless planes, in columns."""
