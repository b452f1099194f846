"""The main job, shown: a prompt's KV cache leaves one process, survives a killed daemon on flash, and another goes on with it."""
