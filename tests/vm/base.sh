#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# base.sh FOLDER CACHE SUITE PACKAGE...: makes FOLDER with the guest's kernel, its initrd and its
# disk from the Debian archive that this machine's apt uses. CACHE keeps the packages.
#
# Runs in a mount and a PID namespace of its own (layers.py), so nothing stays mounted or running
# whatever ends it.
set -euo pipefail

disk_bytes=8G

folder=$1
cache=$2
suite=$3
shift 3
tree=$folder/tree
mkdir -p "$tree" "$cache/debootstrap" "$cache/archives/partial"

codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
site=$(apt-get indextargets --format '$(SITE) $(CODENAME) $(ORIGIN)' 'Created-By: Packages' |
    awk -v codename="$codename" '$2 == codename && $3 == "Debian" { print $1; exit }')
[ -n "$site" ] || {
    echo "apt names no Debian archive for '$codename'; run apt-get update" >&2
    exit 1
}
eval "$(apt-config shell http_proxy Acquire::http::Proxy)"
export http_proxy

step() { echo "$(date +%T) $*"; }

step "debootstrap $suite"
script=/usr/share/debootstrap/scripts/$suite
[ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid
debootstrap --variant=minbase --cache-dir="$cache/debootstrap" --include=ca-certificates \
    "$suite" "$tree" "$site" "$script"

step "packages"
mount -t proc proc "$tree/proc"
mount -t sysfs -o ro sysfs "$tree/sys"
mount --rbind /dev "$tree/dev"
mount --bind "$cache/archives" "$tree/var/cache/apt/archives"
mount -t tmpfs tmpfs "$tree/run"
# the same way to the archive as this machine's, for the time of the build
touch "$tree/etc/resolv.conf" "$tree/etc/hosts"
mount --bind "$(readlink -e /etc/resolv.conf)" "$tree/etc/resolv.conf"
mount --bind /etc/hosts "$tree/etc/hosts"
install -d "$tree/etc/apt/apt.conf.d" "$tree/etc/dpkg/dpkg.cfg.d" "$tree/etc/initramfs-tools/conf.d"
apt-config --no-empty --format '%f "%v";%n' dump Acquire |
    grep -v -e '^Acquire::IndexTargets' -e '^Acquire::cdrom' >"$tree/run/apt.conf"
cat >"$tree/etc/dpkg/dpkg.cfg.d/guest" <<'END'
force-unsafe-io
path-exclude=/usr/share/doc/*
path-exclude=/usr/share/man/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/locale/*
END
printf 'deb %s %s main\n' "$site" "$suite" >"$tree/etc/apt/sources.list"
# An initrd with what the disk takes and nothing else: it is unpacked under emulation.
cat >"$tree/etc/initramfs-tools/conf.d/guest" <<'END'
MODULES=list
RESUME=none
FSTYPE=ext4
END
printf '%s\n' virtio_pci virtio_blk ext4 >"$tree/run/modules"
printf '#!/bin/sh\nexit 101\n' >"$tree/usr/sbin/policy-rc.d"
chmod +x "$tree/usr/sbin/policy-rc.d"

inside() {
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
        DEBIAN_FRONTEND=noninteractive APT_CONFIG=/run/apt.conf http_proxy="${http_proxy:-}" \
        chroot "$tree" "$@"
}
inside apt-get -q update
inside apt-get -q -y --no-install-recommends install initramfs-tools
cat "$tree/run/modules" >>"$tree/etc/initramfs-tools/modules"
inside apt-get -q -y --no-install-recommends install "$@"
rm -f "$tree/usr/sbin/policy-rc.d"
# A package that is installed in the guest comes with its manual.
sed -i /path-exclude/d "$tree/etc/dpkg/dpkg.cfg.d/guest"

step "settings"
echo guest >"$tree/etc/hostname"
printf '127.0.0.1 localhost guest\n::1 localhost\n' >"$folder/hosts"
: >"$tree/etc/machine-id"
printf '/dev/vda / ext4 defaults,noatime 0 0\n' >"$tree/etc/fstab"
ln -sfn /lib/systemd/system/multi-user.target "$tree/etc/systemd/system/default.target"
# Units that a machine without network, terminal and second boot has no use for; a test starts Prometheus itself.
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer \
    e2scrub_reap.service fstrim.timer getty.target man-db.timer systemd-firstboot.service \
    systemd-logind.service systemd-pstore.service systemd-random-seed.service \
    systemd-timesyncd.service systemd-networkd.service systemd-update-utmp.service \
    systemd-tpm2-setup-early.service systemd-tpm2-setup.service systemd-pcrphase.service \
    systemd-ask-password-console.path systemd-ask-password-wall.path \
    systemd-update-done.service ldconfig.service systemd-journal-catalog-update.service \
    prometheus.service prometheus-alertmanager.service tmp.mount; do
    ln -sfn /dev/null "$tree/etc/systemd/system/$unit"
done
install -d "$tree/etc/systemd/journald.conf.d" "$tree/project"
printf '[Journal]\nStorage=volatile\nForwardToConsole=no\nRateLimitIntervalSec=0\n' \
    >"$tree/etc/systemd/journald.conf.d/guest.conf"
# The content of the project's disk joins the root file system before systemd looks at it.
cat >"$tree/sbin/guest-init" <<'END'
#!/bin/sh
mount -t ext4 -o noatime /dev/vdb /project && exec /project/guest/init
END
chmod +x "$tree/sbin/guest-init"

umount "$tree/etc/hosts" "$tree/etc/resolv.conf" "$tree/var/cache/apt/archives"
umount -l "$tree/dev" "$tree/run" "$tree/sys" "$tree/proc"
mv "$folder/hosts" "$tree/etc/hosts"
: >"$tree/etc/resolv.conf"
rm -rf "$tree"/var/lib/apt/lists/* "$tree"/var/cache/apt/*.bin "$tree"/var/log/*.log

step "disk"
cp "$tree"/boot/vmlinuz-* "$folder/vmlinuz"
cp "$tree"/boot/initrd.img-* "$folder/initrd"
mke2fs -q -t ext4 -E lazy_itable_init=1,lazy_journal_init=1,root_owner=0:0 -m 0 -L guest \
    -d "$tree" "$folder/base.ext4" "$disk_bytes"
step "done"
