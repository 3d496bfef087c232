#!/usr/bin/env bash
# One recipe on the nodes of a Slurm job: a Ray head on the first, Ray on the others, then `opd run` on the head.
# Submit from the checkout, which all nodes see, with as many nodes as the recipe's cluster.num_nodes:
#
#   sbatch --nodes=3 --gpus-per-node=8 configs/launch/slurm.sh mopd-qwen3-1.7b-3n8g-megatron-pack [KEY=VALUE …]
#
# What opd is given is passed on, so that the same line with --resume continues a run. Settings, by environment:
#   OPD_VENV     the environment that all nodes see (.venv)
#   OPD_PORT     port of the Ray head (6379 is often Redis; 6380)
#   OPD_SEGMENT  command that prints the NVLink segment of the node it runs on; without it nodes have none

#SBATCH --job-name=opd
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --output=runs/slurm-%j.log

set -euo pipefail

if [[ $# -lt 1 ]]; then
    echo "usage: sbatch --nodes=N --gpus-per-node=G configs/launch/slurm.sh RECIPE [KEY=VALUE …] [--resume]" >&2
    exit 2
fi

venv=${OPD_VENV:-.venv}
port=${OPD_PORT:-6380}
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}')
gpus=${SLURM_GPUS_ON_NODE:-0}

export RAY_USAGE_STATS_ENABLED=0
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

# Ray on one node, in the foreground of its own job step, so that Slurm ends it with the job.
start() {
    local node=$1
    shift
    srun --nodes=1 --ntasks=1 --overlap --nodelist="$node" bash -c '
        segment=$(eval "${OPD_SEGMENT:-true}")
        exec "$@" ${segment:+--labels "nvlink-segment=$segment"}
    ' ray "$venv/bin/ray" start --block --disable-usage-stats --num-gpus="$gpus" "$@" &
}

start "$head" --head --node-ip-address="$address" --port="$port" --include-dashboard=false
for node in "${nodes[@]:1}"; do
    start "$node" --address="$address:$port"
done
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

# The run begins when every node has joined, or not at all.
export RAY_ADDRESS="$address:$port"
deadline=$((SECONDS + 300))
until joined=$("$venv/bin/python" -c '
import ray
ray.init(log_to_driver=False, logging_level="ERROR")
print(sum(node["Alive"] for node in ray.nodes()))' 2>/dev/null) && [[ $joined -ge ${#nodes[@]} ]]; do
    if ((SECONDS > deadline)); then
        echo "slurm.sh: ${joined:-0} of ${#nodes[@]} nodes have joined Ray at $RAY_ADDRESS after 300 s" >&2
        exit 1
    fi
    sleep 5
done

srun --nodes=1 --ntasks=1 --overlap --nodelist="$head" "$venv/bin/opd" run "$@"
