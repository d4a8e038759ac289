/* The C side of `make perf`: the program of p2p_latency, every return code checked, one pair of stamps a round trip.
 *
 * No mpi.h: an environment with two MPI wheels has only one of their headers. Handles come from mpi4py as integers as
 * wide as a pointer, which is what the calls of both libraries take in a register. */
#include <stdint.h>
#include <time.h>

typedef intptr_t handle;
int MPI_Send(const void *, int, handle, int, int, handle);
int MPI_Recv(void *, int, handle, int, int, handle, void *);
int MPI_Barrier(handle);

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int pingpong(void *send, void *recv, int count, handle type, int peer, int first, handle comm, int n, int64_t *stamps) {
  char status[64];
  int code = MPI_Barrier(comm);
  for (int r = 0; r < n && code == 0; r++) {
    stamps[2 * r] = now_ns();
    if (first) {
      if ((code = MPI_Send(send, count, type, peer, 0, comm))) return code;
      if ((code = MPI_Recv(recv, count, type, peer, 0, comm, status))) return code;
    } else {
      if ((code = MPI_Recv(recv, count, type, peer, 0, comm, status))) return code;
      if ((code = MPI_Send(send, count, type, peer, 0, comm))) return code;
    }
    stamps[2 * r + 1] = now_ns();
  }
  return code;
}
