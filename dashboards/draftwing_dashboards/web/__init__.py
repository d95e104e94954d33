"""The page under /dash: is it faster than plain decoding, what is live and why, is anything wrong?"""
