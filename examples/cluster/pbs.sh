#!/usr/bin/env bash
# Trains ResNet-50 on ImageNet with ChainerMN and staging, for PBS and Open MPI. Submit it in the
# top folder of the repository: qsub examples/cluster/pbs.sh
#PBS -N imagenet
# One rank (mpiprocs) for each GPU; all cores of a node: they are for the file readers.
#PBS -l select=2:ncpus=32:mpiprocs=4:ngpus=4
#PBS -l place=scatter:excl
#PBS -l walltime=24:00:00
#PBS -j oe
set -euo pipefail
cd "${PBS_O_WORKDIR:-.}"

# --- Adapt these, or set them with qsub -v. -----------------------------------------------------
: "${DATA:=/lustre/$USER/imagenet}" # the images, train.txt, val.txt and mean.npy
: "${FAST:=}"                       # the node's own disk; empty: $PBS_JOBFS, $TMPDIR or /tmp
: "${CAPACITY:=90%}"                # how much of it may be used, by all ranks of the node
: "${VENV:=$PWD/.venv}"             # Python with Chainer, CuPy, mpi4py and overlapiter
: "${OUT:=result}"                  # the log and the snapshots
: "${ARCH:=resnet50}"
: "${BATCHSIZE:=64}" # of each rank
: "${EPOCHS:=90}"
: "${COMMUNICATOR:=pure_nccl}" # naive: on the CPU
: "${OPTIONS:=}"               # further ones of the training script, such as --seed 0
# module load cuda openmpi
# ------------------------------------------------------------------------------------------------

export FAST
export OMP_NUM_THREADS=1 # each core has a file reader already

read -ra options <<<"$OPTIONS"
mkdir -p "$OUT"
resume=()
snapshot=$(find "$OUT" -maxdepth 1 -name 'snapshot_iter_*.0' | sort -V | tail -n 1)
if [ -n "$snapshot" ]; then # this job continues an earlier one
    resume=(--resume "${snapshot%.0}")
fi

train=(
    "$VENV/bin/python" examples/imagenet/train_imagenet_chainermn.py
    "$DATA/train.txt" "$DATA/val.txt" --root "$DATA" --mean "$DATA/mean.npy"
    --communicator "$COMMUNICATOR" --arch "$ARCH" --batchsize "$BATCHSIZE" --epoch "$EPOCHS"
    --out "$OUT" --capacity "$CAPACITY" ${resume[@]+"${resume[@]}"} ${options[@]+"${options[@]}"}
)

# The file has a line for each rank, with the name of its node.
ranks=$(wc -l <"$PBS_NODEFILE")
ranks_per_node=$((ranks / $(sort -u "$PBS_NODEFILE" | wc -l)))
cores_per_rank=$((${NCPUS:-$(nproc)} / ranks_per_node))

# Each rank has cores of its own (PE) for its file readers. Open MPI would bind two ranks to a
# single core each.
# Each node looks for its own disk, so the shell below does, and not this one.
# shellcheck disable=SC2016
mpiexec -n "$ranks" --hostfile "$PBS_NODEFILE" \
    --map-by "ppr:$ranks_per_node:node:PE=$cores_per_rank" --bind-to core -x FAST -x OMP_NUM_THREADS \
    bash -c 'exec "$@" --staging "${FAST:-${PBS_JOBFS:-${TMPDIR:-/tmp}}}/overlapiter-$(id -un)"' \
    rank "${train[@]}"
