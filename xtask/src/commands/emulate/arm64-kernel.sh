# arm64-kernel.sh REPOSITORY MIRROR CRATE/PROGRAM=FILE...: boots Debian 12's arm64 kernel in qemu-system-aarch64 and runs these test programs there,
# which are linked statically, with the field's tools beside them. Nothing is installed: packages are unpacked into the machine's first file system.
# What a test misses there is printed under "skipped". Exit code: 0 all passed, 1 one failed, or the machine came to no end.
set -eu
repository=$1 mirror=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mmdebstrap --quiet --variant=extract --architectures=arm64 \
    --include=linux-image-arm64,busybox-static,bash,coreutils,conntrack,ipset,iproute2,iptables,ipvsadm,kmod,mount,nftables,procps,util-linux \
    bookworm "$root" "$mirror"
mv "$root"/boot/vmlinuz-* "$work/vmlinuz"
release=$(ls "$root/lib/modules")
# Sound, discs and cards need most of the room.
for folder in "$root/lib/modules/$release"/kernel/drivers/*; do
    [ "${folder##*/}" = net ] || rm -rf "$folder"
done
rm -rf "$root"/boot "$root"/usr/share/doc "$root"/usr/share/locale "$root"/usr/share/man "$root"/var/cache "$root"/var/lib/apt \
    "$root/lib/modules/$release/kernel/fs" "$root/lib/modules/$release/kernel/sound"
depmod -b "$root" "$release"
for family in iptables ip6tables; do
    for end in '' -save -restore; do ln -sf "$family-nft$end" "$root/usr/sbin/$family$end"; done
done
ln -sf bash "$root/bin/sh"
for program; do
    place=${program%%=*}
    crate=${place%%/*}
    # Programs find their fixtures where they were compiled.
    mkdir -p "$root$repository/$crate" "$root/programs/$crate"
    [ ! -d "$repository/$crate/tests" ] || cp -r "$repository/$crate/tests" "$root$repository/$crate/"
    cp "${program#*=}" "$root/programs/$place"
done
cat >"$root/init" <<END
#!/bin/busybox sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C TESTKIT_SKIPPED=/run/skipped
cd /
for place in proc:proc sysfs:sys devtmpfs:dev tmpfs:tmp tmpfs:run; do
    /bin/busybox mkdir -p /\${place#*:}
    /bin/busybox mount -t \${place%:*} none /\${place#*:}
done
mkdir -p /run/netns
echo "Linux \$(uname -r -m)"
for program in /programs/*/*; do
    crate=\${program#/programs/}
    cd "$repository/\${crate%/*}"
    echo "--- \$crate"
    \$program 2>&1 || echo "FAILED: \$crate"
done
echo "--- skipped"
cat /run/skipped 2>/dev/null
echo "--- end"
echo o >/proc/sysrq-trigger
sleep 10
END
chmod 755 "$root/init"
(cd "$root" && find . -print0 | cpio --null --quiet --create --format=newc | gzip -1) >"$work/initrd"
rm -rf "$root"
timeout 3600 qemu-system-aarch64 -M virt -cpu max -smp 2 -m 3G -nographic -no-reboot -kernel "$work/vmlinuz" -initrd "$work/initrd" \
    -append "console=ttyAMA0 panic=-1 quiet rdinit=/init" </dev/null | tee "$work/log"
grep -q '^--- end' "$work/log" && ! grep -q '^FAILED: ' "$work/log"
