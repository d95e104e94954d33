"""The rank process and the channel to it. One rank now; more ranks are more processes behind the same channel."""
