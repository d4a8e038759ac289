/* The C side of `make perf`: the programs of three benchmarks, every return code checked, one pair of stamps a
 * repetition, on the buffers of our own engines and with the same rotation over their copies.
 *
 * No mpi.h: an environment with two MPI wheels has only one of their headers. Handles come from mpi4py as integers as
 * wide as a pointer, which is what the calls of both libraries take in a register; requests and statuses lie in arrays
 * with the strides of the loaded library. */
#include <stdint.h>
#include <time.h>

typedef intptr_t handle;
int MPI_Send(const void *, int, handle, int, int, handle);
int MPI_Recv(void *, int, handle, int, int, handle, void *);
int MPI_Isend(const void *, int, handle, int, int, handle, void *);
int MPI_Irecv(void *, int, handle, int, int, handle, void *);
int MPI_Waitall(int, void *, void *);
int MPI_Allreduce(const void *, void *, int, handle, handle, handle);
int MPI_Barrier(handle);

enum { ACK_BYTES = 4 };

/* reference.py fills it: addresses are [pool][slots], those of the acknowledgement [pool] */
struct job {
  void **send, **recv, **ack;
  char *requests;
  void *statuses;
  intptr_t request_bytes;
  handle type, ack_type, operation, comm;
  int count, slots, pool, peer, first;
};

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int p2p_latency(const struct job *job, int n, int64_t *stamps) {
  const struct job j = *job;
  int code = MPI_Barrier(j.comm);
  for (int r = 0; r < n && code == 0; r++) {
    void *send = j.send[r % j.pool], *recv = j.recv[r % j.pool];
    stamps[2 * r] = now_ns();
    if (j.first) {
      if ((code = MPI_Send(send, j.count, j.type, j.peer, 0, j.comm))) return code;
      if ((code = MPI_Recv(recv, j.count, j.type, j.peer, 0, j.comm, j.statuses))) return code;
    } else {
      if ((code = MPI_Recv(recv, j.count, j.type, j.peer, 0, j.comm, j.statuses))) return code;
      if ((code = MPI_Send(send, j.count, j.type, j.peer, 0, j.comm))) return code;
    }
    stamps[2 * r + 1] = now_ns();
  }
  return code;
}

static int sent_window(const struct job *j, int copy) {
  int code;
  for (int slot = 0; slot < j->slots; slot++) {
    void *data = j->send[copy * j->slots + slot], *request = j->requests + slot * j->request_bytes;
    if ((code = MPI_Isend(data, j->count, j->type, j->peer, 0, j->comm, request))) return code;
  }
  if ((code = MPI_Waitall(j->slots, j->requests, j->statuses))) return code;
  return MPI_Recv(j->ack[copy], ACK_BYTES, j->ack_type, j->peer, 0, j->comm, j->statuses);
}

static int received_window(const struct job *j, int copy) {
  int code;
  for (int slot = 0; slot < j->slots; slot++) {
    void *data = j->recv[copy * j->slots + slot], *request = j->requests + slot * j->request_bytes;
    if ((code = MPI_Irecv(data, j->count, j->type, j->peer, 0, j->comm, request))) return code;
  }
  if ((code = MPI_Waitall(j->slots, j->requests, j->statuses))) return code;
  return MPI_Send(j->ack[copy], ACK_BYTES, j->ack_type, j->peer, 0, j->comm);
}

int p2p_bandwidth(const struct job *job, int n, int64_t *stamps) {
  const struct job j = *job;
  int code = MPI_Barrier(j.comm);
  for (int r = 0; r < n && code == 0; r++) {
    stamps[2 * r] = now_ns();
    code = j.first ? sent_window(&j, r % j.pool) : received_window(&j, r % j.pool);
    stamps[2 * r + 1] = now_ns();
  }
  return code;
}

/* not in place, as ours: no side has a refill, and every repetition begins behind a barrier that is not timed */
int all_reduce(const struct job *job, int n, int64_t *stamps) {
  const struct job j = *job;
  int code = 0;
  for (int r = 0; r < n && code == 0; r++) {
    void *send = j.send[r % j.pool], *recv = j.recv[r % j.pool];
    if ((code = MPI_Barrier(j.comm))) return code;
    stamps[2 * r] = now_ns();
    code = MPI_Allreduce(send, recv, j.count, j.type, j.operation, j.comm);
    stamps[2 * r + 1] = now_ns();
  }
  return code;
}
