"""The main job, shown: a prompt's KV cache leaves a process, outlives a killed daemon on flash, and another goes on with it."""
