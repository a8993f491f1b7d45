#!/usr/bin/env bash
# Several nodes on this machine, made of Linux namespaces, and a command in them.
#
#   tests/cluster/nodes.sh NODES RATE COMMAND...
#
# starts NODES nodes (node1, node2, ...) and a login node (head), runs COMMAND on the login node, and ends with its exit
# code. RATE is that of every link in both directions, as `tc` writes it (200mbit, 1gbit), or "none" for no limit. The
# first mpirun in COMMAND, `hybridnn train -n 4` included, places its ranks on the nodes. `agent node2 COMMAND...` runs a
# command on a node, as ssh does. When COMMAND ends, or this process is killed, the kernel ends all processes of all
# nodes and removes everything else: host, network, mounts and files of the nodes exist in namespaces alone.
# Exit code 77: it cannot run here; the reason is printed. Exit code 2: a wrong argument.
#
# A node has its own host name, network address, process numbers, System V memory, monotonic clock, /dev/shm and
# /run/node (TMPDIR is in it). All other folders are those of this machine, as on a shared file system. SLOTS=2 are the
# ranks of a node that mpirun fills before the next node; SHM=1g and LOCAL=256m are the sizes of /dev/shm and /run/node.
set -euo pipefail

NETWORK=10.99.0
SHARED=/run/cluster # files of all nodes, in a file system that no process outside sees
export SLOTS=${SLOTS:-2} SHM=${SHM:-1g} LOCAL=${LOCAL:-256m}

cannot() {
  echo "nodes cannot be made here: $*" >&2
  exit 77
}

refuse() {
  echo "nodes.sh: $*" >&2
  exit 2
}

# Outside of the namespaces.
start() {
  (($# >= 3)) || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2; }
  [[ $1 =~ ^[1-9][0-9]{0,2}$ ]] && (($1 <= 253)) || refuse "NODES is '$1': it must be a number from 1 to 253"
  [[ $2 =~ ^(none|[1-9][0-9]*[kmg]bit)$ ]] || refuse "RATE is '$2': it must be none, or such as 500kbit, 200mbit or 1gbit"
  local tool
  for tool in ip tc unshare nsenter; do
    command -v "$tool" >/dev/null || cannot "there is no $tool"
  done
  ((EUID == 0)) || cannot "it needs root"
  [ -e /proc/self/ns/time ] || cannot "this kernel has no namespaces for clocks"
  # One trial of all that a container may refuse.
  unshare --pid --fork --mount --mount-proc --uts --net --time bash -c \
    'mount -t tmpfs tmpfs /run && ip link add switch type bridge && tc qdisc add dev lo root tbf rate 1mbit burst 32kb limit 1mb' \
    >/dev/null 2>&1 || cannot "this kernel or container gives no namespace with a bridge and a rate limit"
  exec unshare --pid --fork --kill-child --mount --mount-proc --uts --net "$0" --head "$@"
}

# First process of the login node, which is the parent of the nodes and their network switch.
head_node() {
  local nodes=$1 rate=$2 i
  shift 2
  hostname head
  mount -t tmpfs tmpfs /run
  mkdir -p "$SHARED/tmp"
  write_files "$nodes"
  mount --bind "$SHARED/hosts" /etc/hosts
  ip link set lo up
  ip link add switch type bridge
  ip link set switch mtu 9000 up
  ip address add "$NETWORK.254/24" dev switch
  for ((i = 1; i <= nodes; i++)); do start_node "$i" "$rate"; done
  touch "$SHARED/ready"
  local code=0
  "$SHARED/login" "$@" || code=$?
  exit "$code"
}

write_files() {
  local i
  printf '127.0.0.1 localhost\n%s.254 head\n' "$NETWORK" >"$SHARED/hosts"
  for ((i = 1; i <= $1; i++)); do
    echo "$NETWORK.$i node$i" >>"$SHARED/hosts"
    echo "node$i slots=$SLOTS" >>"$SHARED/open-mpi-hosts"
    echo "node$i:$SLOTS" >>"$SHARED/mpich-hosts"
  done
  cat >"$SHARED/agent" <<'AGENT'
#!/bin/bash
# agent NODE COMMAND...: run a command on a node, with the environment and in the folder of the caller. As with ssh, the
# end of a node gives exit code 255, and nothing is known of a node while its link is cut.
while [[ $1 == -* ]]; do shift; done
node=$1 code=0
process=$(cat "/run/cluster/$node.pid") && kill -0 "$process" 2>/dev/null || { echo "there is no $node" >&2; exit 255; }
shift
export TMPDIR=/run/node/tmp HERE=$PWD
nsenter --target "$process" --mount --uts --ipc --net --pid --time bash -c "cd \"\$HERE\" && $*" || code=$?
while [ -e "/run/cluster/$node.cut" ]; do sleep 0.1; done
exit "$((code == 137 ? 255 : code))"
AGENT
  cat >"$SHARED/limit" <<LIMIT
#!/bin/bash -e
# limit NODE RATE: limit the link of a node in both directions. After a pause, as much passes at once as the link
# carries in 128 microseconds, because timers are not more precise than that; packets are smaller.
process=\$(cat $SHARED/"\$1.pid")
case \$2 in
  none) mbit=1000 ;;
  *gbit) mbit=\$((\${2%%[!0-9]*} * 1000)) ;;
  *mbit) mbit=\${2%%[!0-9]*} ;;
  *) mbit=1 ;;
esac
((mbit < 1000)) && packet=1500 || packet=9000
burst=\$((16 * mbit > 3000 ? 16 * mbit : 3000))
for device in "\$1" eth0; do
  [ "\$device" = eth0 ] && there=(nsenter --target "\$process" --net) || there=()
  "\${there[@]}" ip link set "\$device" mtu "\$packet"
  if [ "\$2" = none ]; then
    "\${there[@]}" tc qdisc delete dev "\$device" root 2>/dev/null || true
  else
    "\${there[@]}" tc qdisc replace dev "\$device" root tbf rate "\$2" burst "\${burst}b" limit 4mb
  fi
done
LIMIT
  cat >"$SHARED/login" <<LOGIN
#!/bin/bash
# login COMMAND...: run a command on the login node. Waiting ranks yield, because the nodes share the cores.
export PATH=$SHARED:\$PATH TMPDIR=$SHARED/tmp OMPI_MCA_mpi_yield_when_idle=1
export PRTE_MCA_plm_ssh_agent=$SHARED/agent PRTE_MCA_prte_default_hostfile=$SHARED/open-mpi-hosts
export HYDRA_LAUNCHER=ssh HYDRA_LAUNCHER_EXEC=$SHARED/agent HYDRA_HOST_FILE=$SHARED/mpich-hosts
exec "\$@"
LOGIN
  chmod +x "$SHARED/agent" "$SHARED/limit" "$SHARED/login"
}

# start_node NUMBER RATE: a node with a link to the switch. The rate holds in both directions.
start_node() {
  local name=node$1 process
  unshare --mount --uts --ipc --net --pid --time --monotonic "$(($1 * 1000))" --boottime "$(($1 * 1000))" \
    --fork --kill-child --mount-proc "$0" --node "$name" &
  until [ -e "$SHARED/$name.ready" ]; do kill -0 $! && sleep 0.01; done
  process=$(tr -d ' ' <"/proc/$!/task/$!/children") # its only child
  echo "$process" >"$SHARED/$name.pid"
  ip link add "$name" mtu 9000 type veth peer name eth0 mtu 9000 netns "$process"
  ip link set "$name" master switch up
  nsenter --target "$process" --net bash -ec \
    "ip link set lo up; ip address add $NETWORK.$1/24 dev eth0; ip link set eth0 up"
  "$SHARED/limit" "$name" "$2"
}

# First process of a node.
node() {
  hostname "$1"
  mount -t tmpfs -o "size=$SHM" tmpfs /dev/shm
  mkdir /run/node 2>/dev/null || true
  mount -t tmpfs -o "size=$LOCAL" tmpfs /run/node
  mkdir /run/node/tmp
  touch "$SHARED/$1.ready"
  sleep infinity &
  wait
}

case ${1:-} in
  --head) shift && head_node "$@" ;;
  --node) node "$2" ;;
  *) start "$@" ;;
esac
