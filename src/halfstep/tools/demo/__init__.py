"""The demo: a prompt's KV cache leaves a process and outlives a killed daemon on flash; another process continues with it."""
