#!/usr/bin/env bash
# A real Slurm on this machine: one controller and several node daemons, each of which acts as a machine.
#
#   tests/slurm/slurm.sh start    starts it unless it runs; prints the variable to set in a shell
#   tests/slurm/slurm.sh status   exit code 0 if it runs
#   tests/slurm/slurm.sh stop     stops it and removes its files
#   tests/slurm/slurm.sh install  installs what it needs, and starts nothing
#
# NODES=4 CPUS=4 FOLDER=/var/tmp/hybridnn-slurm PORT=17800 change its size and place. Exit code 77: it cannot run here; the reason is printed.
# It needs root, a kernel with namespaces, and Debian's packages, which it installs if they are missing.
# All its files are in FOLDER, including its key and its configuration, so another Slurm of the machine is not affected.
#
#   tests/cluster/nodes.sh 4 1gbit tests/slurm/slurm.sh on-nodes COMMAND...
#
# runs COMMAND, for example bash, on the login node of a Slurm on the nodes of tests/cluster/nodes.sh, which it starts there
# unless it runs. Each node has as many CPUs as slots. Jobs of `sbatch --licenses=machine` run one at a time, because the
# nodes share the cores of this machine. The Slurm ends with the nodes. As these reach no other network, `install` comes
# first.
set -euo pipefail

NODES=${NODES:-4}
CPUS=${CPUS:-4}
FOLDER=${FOLDER:-/var/tmp/hybridnn-slurm}
PORT=${PORT:-17800}
SPOOL=$FOLDER/spool/%n
TMPFS=$FOLDER/tmp/%n
TIMEOUT=30 # seconds without an answer after which a node is down
MACHINES=/run/cluster # of tests/cluster/nodes.sh, whose nodes share this folder; /run/node is a folder of each alone
if [ "${1:-}" = on-nodes ]; then
  NODES=$(grep -c . "$MACHINES/open-mpi-hosts") || { echo "on-nodes: a command of tests/cluster/nodes.sh alone" >&2; exit 2; }
  CPUS=$(sed -n '1s/.*slots=//p' "$MACHINES/open-mpi-hosts")
  FOLDER=$MACHINES/slurm
  SPOOL=/run/node/slurm
  TMPFS=/run/node/tmp
  TIMEOUT=10
fi
PACKAGES=(munge slurmctld slurmd slurm-client libpmix2)
DEADLINE=60 # seconds until every node must answer
MARK="# hybridnn-slurm"
export SLURM_CONF=$FOLDER/slurm.conf

cannot() {
  echo "Slurm cannot run here: $*" >&2
  exit 77
}

fail() {
  echo "Slurm did not start: $*" >&2
  exit 1
}

# runs NAME: succeeds if the process in NAME's pid file is alive and is that daemon, not a zombie (some containers reap late).
runs() {
  local pid state
  pid=$(cat "$FOLDER/run/$1.pid" 2>/dev/null) && [ -n "$pid" ] || return 1
  [[ "${1%%.*}" == "$(cat "/proc/$pid/comm" 2>/dev/null)" ]] || return 1
  state=$(sed -n 's/^State:\s*\(.\).*/\1/p' "/proc/$pid/status" 2>/dev/null)
  [[ -n $state && $state != [ZX] ]]
}

# end NAME...: sends SIGTERM to all daemons, waits at most ten seconds, then sends SIGKILL.
end() {
  local name left
  for name in "$@"; do runs "$name" && kill "$(cat "$FOLDER/run/$name.pid")"; done
  for _ in {1..100}; do
    left=0
    for name in "$@"; do runs "$name" && left=1; done
    ((left)) || break
    sleep 0.1
  done
  for name in "$@"; do runs "$name" && kill -KILL "$(cat "$FOLDER/run/$name.pid")"; done
  return 0
}

node_daemons() {
  local file
  for file in "$FOLDER"/run/slurmd.*.pid; do
    [ -e "$file" ] && basename "$file" .pid
  done
  return 0
}

install_packages() {
  local missing=() package printed
  for package in "${PACKAGES[@]}"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  printed=$({ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"; } 2>&1) ||
    cannot "apt-get install ${missing[*]}: ${printed##*$'\n'}"
}

# Slurm's plugin for PMIx opens libpmix.so, a name that Debian keeps in the development package. The library has two paths, in
# no certain order, and the plugin looks beside one of them.
link_pmix() {
  local library linked=""
  while read -r library; do
    [ -e "${library%.2}" ] || ln -s libpmix.so.2 "${library%.2}"
    linked=yes
  done < <(dpkg -L libpmix2 | grep '/libpmix\.so\.2$')
  [ -n "$linked" ] || cannot "the package libpmix2 holds no libpmix.so.2"
}

# MPI libraries look a node up by its name.
name_nodes() {
  local i
  grep -q "$MARK" /etc/hosts && return
  { printf '127.0.0.1'; for ((i = 1; i <= NODES; i++)); do printf ' n%d' "$i"; done; echo " $MARK"; } >>/etc/hosts
}

# Several choices here are for many nodes on one machine: `config_overrides` believes the CPUs it is told, `linuxproc`
# and `task/none` do without cgroups, and TmpFS keeps the PMIx sockets of the nodes apart. `cred_expire` is how long a
# job that was requeued waits for its old permit to end: two minutes unless told otherwise.
configuration() {
  local i memory
  memory=$(($(awk '/MemTotal/ {print $2}' /proc/meminfo) / 1200 / NODES))
  cat <<CONF
ClusterName=hybridnn
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$FOLDER/run/munge.socket,cred_expire=5
StateSaveLocation=$FOLDER/state
SlurmdSpoolDir=$SPOOL
SlurmctldPidFile=$FOLDER/run/slurmctld.pid
SlurmdPidFile=$FOLDER/run/slurmd.%n.pid
SlurmctldLogFile=$FOLDER/log/slurmctld.log
SlurmdLogFile=$FOLDER/log/slurmd.%n.log
TmpFS=$TMPFS
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/filetxt
JobCompLoc=$FOLDER/log/finished-jobs.txt
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=2,bf_interval=1
PriorityType=priority/basic
JobRequeue=1
ReturnToService=2
KillWait=5
MinJobAge=600
MaxArraySize=1001
SlurmdTimeout=$TIMEOUT
PropagateResourceLimitsExcept=MEMLOCK
NodeName=DEFAULT CPUs=$CPUS Boards=1 SocketsPerBoard=1 CoresPerSocket=$CPUS ThreadsPerCore=1 RealMemory=$memory
CONF
  if [ "$FOLDER" = $MACHINES/slurm ]; then
    awk '$2 == "head" {print "SlurmctldHost=head(" $1 ")"} $2 ~ /^node/ {print "NodeName=" $2 " NodeAddr=" $1}' $MACHINES/hosts
    echo "TaskProlog=$FOLDER/task-prolog"
    echo "Licenses=machine:1"
  else
    echo "SlurmctldHost=$(hostname -s)(127.0.0.1)"
    echo "SlurmctldPort=$PORT"
    for ((i = 1; i <= NODES; i++)); do echo "NodeName=n$i NodeHostname=n$i NodeAddr=127.0.0.1 Port=$((PORT + i))"; done
  fi
  echo "PartitionName=main Nodes=ALL Default=YES DefaultTime=10 MaxTime=INFINITE State=UP"
}

start_munge() {
  runs munged && return
  local key=$FOLDER/key
  [ -s "$key" ] || (umask 077 && head -c 128 /dev/urandom >"$key")
  munged --force --key-file="$key" --socket="$FOLDER/run/munge.socket" --pid-file="$FOLDER/run/munged.pid" \
    --seed-file="$FOLDER/seed" --log-file="$FOLDER/log/munged.log" </dev/null >/dev/null 2>&1 ||
    fail "munged, see $FOLDER/log/munged.log"
}

start_controller() {
  runs slurmctld && return
  slurmctld -f "$SLURM_CONF" </dev/null >/dev/null 2>&1 || fail "slurmctld, see $FOLDER/log/slurmctld.log"
}

# A name space for its host name makes every daemon, and each rank below it, one of another machine. The PMIx inside MPI
# libraries from the Python package index has no munge; `native` is what both sides have.
start_node() {
  runs "slurmd.$1" && return
  # shellcheck disable=SC2016 # the inner shell expands it
  PMIX_MCA_psec=native unshare --uts sh -c 'hostname "$1" && exec slurmd -f "$SLURM_CONF" -N "$1"' sh "$1" \
    </dev/null >/dev/null 2>&1 || fail "slurmd of $1, see $FOLDER/log/slurmd.$1.log"
}

nodes_that_answer() {
  sinfo -h -N -o '%N %T' 2>/dev/null | awk '$2 ~ /^(idle|mixed|allocated|completing)$/ {print $1}' | sort -u | wc -l
}

install() {
  ((EUID == 0)) || cannot "it needs root"
  command -v apt-get >/dev/null || cannot "it installs Debian's packages, and there is no apt-get"
  unshare --uts true 2>/dev/null || cannot "this kernel or container gives no namespace for host names"
  install_packages
  link_pmix
}

wait_for_nodes() {
  local i
  for ((i = 0; i < DEADLINE * 5; i++)); do
    [ "$(nodes_that_answer)" != "$NODES" ] || return 0
    # Nodes that an earlier end left down come back only when told.
    sinfo -h -N -t down,drain -o %N 2>/dev/null | sort -u | xargs -r -I{} scontrol update nodename={} state=resume || true
    sleep 0.2
  done
  fail "only $(nodes_that_answer) of $NODES nodes answer, see $FOLDER/log"
}

start() {
  local i before now
  install
  mkdir -p "$FOLDER"/{log,run,state}
  chmod 755 "$FOLDER" "$FOLDER/run"
  name_nodes
  now=$(configuration)
  before=$(cat "$SLURM_CONF" 2>/dev/null) || true
  if [ "$now" != "$before" ]; then
    # shellcheck disable=SC2046 # one word each
    end $(node_daemons) slurmctld
    echo "$now" >"$SLURM_CONF"
  fi
  touch "$FOLDER/log/finished-jobs.txt" "$FOLDER/cgroup.conf"
  start_munge
  start_controller
  for ((i = 1; i <= NODES; i++)); do
    mkdir -p "$FOLDER/spool/n$i" "$FOLDER/tmp/n$i"
    start_node "n$i"
  done
  wait_for_nodes
  echo "export SLURM_CONF=$SLURM_CONF"
}

# A job gets its hosts from Slurm, and starts processes on them with srun.
on_nodes() {
  local i
  command -v slurmctld slurmd munged >/dev/null || cannot "first, outside of the nodes: $0 install"
  if [ ! -e "$SLURM_CONF" ]; then
    mkdir -p "$FOLDER"/{log,run,state}
    configuration >"$SLURM_CONF"
    printf '#!/bin/sh\necho export TMPDIR=%s\n' "$TMPFS" >"$FOLDER/task-prolog"
    chmod 755 "$FOLDER" "$FOLDER/run" "$FOLDER/task-prolog"
    touch "$FOLDER/log/finished-jobs.txt" "$FOLDER/cgroup.conf"
    start_munge
    start_controller
    for ((i = 1; i <= NODES; i++)); do
      PMIX_MCA_psec=native "$MACHINES/agent" "node$i" slurmd -f "$SLURM_CONF" </dev/null >/dev/null 2>&1 ||
        fail "slurmd of node$i, see $FOLDER/log/slurmd.node$i.log"
    done
    wait_for_nodes
  fi
  unset PRTE_MCA_plm_ssh_agent PRTE_MCA_prte_default_hostfile HYDRA_LAUNCHER HYDRA_LAUNCHER_EXEC HYDRA_HOST_FILE
  exec "$@"
}

status() {
  runs slurmctld && [ "$(nodes_that_answer)" = "$NODES" ]
}

stop() {
  if runs slurmctld; then # jobs first, so that nothing of them outlives the daemons
    timeout 10 scancel --user=root --quiet 2>/dev/null || true
    for _ in {1..75}; do
      [ -n "$(timeout 5 squeue -h 2>/dev/null)" ] || break
      sleep 0.2
    done
  fi
  # shellcheck disable=SC2046 # one word each
  end $(node_daemons) slurmctld munged
  if grep -q "$MARK" /etc/hosts; then
    grep -v "$MARK" /etc/hosts >"$FOLDER/hosts" || true
    cat "$FOLDER/hosts" >/etc/hosts # in place: a container may have mounted it
  fi
  rm -rf "$FOLDER"
}

case ${1:-} in
  install | start | status | stop) "$1" ;;
  on-nodes) shift && on_nodes "$@" ;;
  *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2 ;;
esac
