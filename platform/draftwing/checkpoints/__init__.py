"""Where models come from: folders, hub ids and GGUF files, checked by their headers before a weight is read."""
