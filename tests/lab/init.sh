#!/bin/busybox sh
# init.sh — the first process of the guest: this machine's root over 9p, read-only, under a tmpfs that takes the writes; the
# job in it; then off. It stays in the initramfs: the 9p devices go before the power does, and a first process that lies on one
# of them would panic the kernel.
B=/bin/busybox
$B mount -t proc proc /proc
$B mount -t sysfs sysfs /sys
$B mount -t devtmpfs devtmpfs /dev
while read -r module; do
  $B insmod "/modules/$module" || echo "guest: insmod $module failed"
done </modules/order

$B mkdir -p /below /above /root
NINE=trans=virtio,version=9p2000.L,msize=524288
$B mount -t 9p -o "ro,$NINE,cache=loose" machine /below || echo "guest: no root over 9p"
$B mount -t tmpfs -o size=75% tmpfs /above
$B mkdir -p /above/upper /above/work
$B mount -t overlay -o lowerdir=/below,upperdir=/above/upper,workdir=/above/work overlay /root || echo "guest: no overlay"
for folder in proc sys dev; do $B mount --bind "/$folder" "/root/$folder"; done
$B mkdir -p /root/dev/pts /root/dev/shm /root/results
$B ln -sf /proc/self/fd /root/dev/fd
$B mount -t devpts devpts /root/dev/pts
$B mount -t tmpfs tmpfs /root/dev/shm
$B mount -t tmpfs tmpfs /root/run
# Coherent with the machine's view: nothing of it may be cached.
$B mount -t 9p -o "rw,$NINE,cache=none" results /root/results || echo "guest: no results share"
$B chroot /root /bin/bash /results/job.sh >/root/dev/ttyS0 2>&1 </root/dev/null
echo $? >/root/results/status
$B sync
$B poweroff -f
