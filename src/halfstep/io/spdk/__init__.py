"""SPDK's control plane: a bdev and its vhost-user-blk controller made in a running target, and its health."""
