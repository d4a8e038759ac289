// What one GPU does by CUDA's and NCCL's own C calls, to compare with what commbench reports of it.
//
//   nvcc -O2 -std=c++17 -arch=sm_90 -cudart static -o truth truth.cu -ldl
//   NCCL=/path/libnccl.so.2 ./truth clock | copy | ipc | turns | nccl | two | windows | init [SECONDS]
// prints one JSON object a line, flushed: a part that hangs leaves the others. NCCL is opened when it is needed, so neither its
// header nor its library is needed to build this, and any version of it can be tried.
//
// Four ways to time, named as commbench names them:
//   host_sync     host clock around the call and a synchronisation of the stream
//   device_event  events around one call, enqueued while a kernel holds the stream
//   throughput    events around 20 calls, enqueued while a kernel holds the stream
//   graph         events around the replay of a graph of 20 calls, likewise
//   loop          host clock around 20 calls and one synchronisation, without a hold (what nccl-tests reports)
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#define CUDA(call)                                                                                              \
  do {                                                                                                          \
    cudaError_t status_ = (call);                                                                               \
    if (status_ != cudaSuccess) {                                                                               \
      printf("{\"error\": \"%s\", \"line\": %d, \"call\": \"%s\"}\n", cudaGetErrorString(status_), __LINE__, #call); \
      fflush(stdout);                                                                                           \
      _exit(1);                                                                                                 \
    }                                                                                                           \
  } while (0)
#define NCCL(call)                                                                                              \
  do {                                                                                                          \
    int status_ = (call);                                                                                       \
    if (status_ != 0) {                                                                                         \
      printf("{\"error\": \"%s\", \"line\": %d, \"call\": \"%s\"}\n", errorText(status_), __LINE__, #call);       \
      fflush(stdout);                                                                                           \
      _exit(1);                                                                                                 \
    }                                                                                                           \
  } while (0)

// of NCCL's user guide
struct Id {
  char bytes[128];
};
typedef void *Comm;
typedef void *Window;
enum { FLOAT = 7, SUM = 0, AVG = 4, COLLECTIVE_SYMMETRIC = 1 };
static const char *(*errorText)(int);
static int (*getVersion)(int *), (*getUniqueId)(Id *), (*initRank)(Comm *, int, Id, int), (*destroy)(Comm), (*groupStart)(), (*groupEnd)();
static int (*allReduce)(const void *, void *, size_t, int, int, Comm, cudaStream_t);
static int (*reduceScatter)(const void *, void *, size_t, int, int, Comm, cudaStream_t);
static int (*allGather)(const void *, void *, size_t, int, Comm, cudaStream_t);
static int (*split)(Comm, int, int, Comm *, void *);
static int (*allocate)(void **, size_t), (*release)(void *), (*registerBuffer)(Comm, void *, size_t, void **), (*deregisterBuffer)(Comm, void *);
static int (*registerWindow)(Comm, void *, size_t, Window *, int), (*deregisterWindow)(Comm, Window);  // since 2.27
static int (*sendTo)(const void *, size_t, int, int, Comm, cudaStream_t), (*recvFrom)(void *, size_t, int, int, Comm, cudaStream_t);

static void open_nccl() {
  const char *path = getenv("NCCL") ? getenv("NCCL") : "libnccl.so.2";
  void *library = dlopen(path, RTLD_NOW);
  if (!library) {
    printf("{\"error\": \"%s can't be opened\"}\n", path);
    fflush(stdout);
    _exit(1);
  }
  *(void **)&errorText = dlsym(library, "ncclGetErrorString");
  *(void **)&getVersion = dlsym(library, "ncclGetVersion");
  *(void **)&getUniqueId = dlsym(library, "ncclGetUniqueId");
  *(void **)&initRank = dlsym(library, "ncclCommInitRank");
  *(void **)&destroy = dlsym(library, "ncclCommDestroy");
  *(void **)&groupStart = dlsym(library, "ncclGroupStart");
  *(void **)&groupEnd = dlsym(library, "ncclGroupEnd");
  *(void **)&allReduce = dlsym(library, "ncclAllReduce");
  *(void **)&reduceScatter = dlsym(library, "ncclReduceScatter");
  *(void **)&allGather = dlsym(library, "ncclAllGather");
  *(void **)&split = dlsym(library, "ncclCommSplit");
  *(void **)&allocate = dlsym(library, "ncclMemAlloc");
  *(void **)&release = dlsym(library, "ncclMemFree");
  *(void **)&registerBuffer = dlsym(library, "ncclCommRegister");
  *(void **)&deregisterBuffer = dlsym(library, "ncclCommDeregister");
  *(void **)&registerWindow = dlsym(library, "ncclCommWindowRegister");
  *(void **)&deregisterWindow = dlsym(library, "ncclCommWindowDeregister");
  *(void **)&sendTo = dlsym(library, "ncclSend");
  *(void **)&recvFrom = dlsym(library, "ncclRecv");
}

using Enqueue = std::function<void(cudaStream_t)>;
static const int BATCH = 20;
static double budget_s = 0.25;  // of one kind of timing of one call
static volatile int *gate;      // host memory: 1 opens it
static int *gate_on_device;
static cudaStream_t stream;
static cudaEvent_t first_event, last_event;

static double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Ends when the host opens the gate, and in any case after `cycles`: nothing can hang on it.
__global__ void wait_for_gate(volatile int *opened, long long cycles) {
  long long begin = clock64();
  while (!*opened && clock64() - begin < cycles) {
  }
}

__global__ void count_cycles(long long cycles, unsigned long long *ends) {
  unsigned long long from, to;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(from));
  long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(to));
  ends[0] = from;
  ends[1] = to;
}

__global__ void nothing() {}

static void start() {
  CUDA(cudaSetDevice(0));
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA(cudaEventCreate(&first_event));
  CUDA(cudaEventCreate(&last_event));
  int *memory;
  CUDA(cudaHostAlloc((void **)&memory, sizeof(int), cudaHostAllocMapped));
  CUDA(cudaHostGetDevicePointer((void **)&gate_on_device, memory, 0));
  gate = memory;
}

struct Times {
  std::vector<double> seconds;
  double quantile(double share) {
    std::sort(seconds.begin(), seconds.end());
    return seconds.empty() ? 0.0 : seconds[(size_t)(share * (seconds.size() - 1))];
  }
};

// `once` enqueues what is timed, which is `calls` calls; seconds of one call.
static Times by_host(const Enqueue &once, int calls) {
  Times times;
  double until = now_s() + budget_s;
  for (int n = 0; n < 3; n++) once(stream);
  CUDA(cudaStreamSynchronize(stream));
  while (times.seconds.size() < 5 || (now_s() < until && times.seconds.size() < 2000)) {
    double begin = now_s();
    once(stream);
    CUDA(cudaStreamSynchronize(stream));
    times.seconds.push_back((now_s() - begin) / calls);
  }
  return times;
}

static Times by_events(const Enqueue &once, int calls, bool held) {
  Times times;
  double until = now_s() + budget_s;
  for (int n = 0; n < 3; n++) once(stream);  // loads what it needs: that must not happen behind the gate
  CUDA(cudaStreamSynchronize(stream));
  while (times.seconds.size() < 5 || (now_s() < until && times.seconds.size() < 2000)) {
    *gate = 0;
    if (held) wait_for_gate<<<1, 1, 0, stream>>>(gate_on_device, 2000000000LL);
    CUDA(cudaEventRecord(first_event, stream));
    once(stream);
    CUDA(cudaEventRecord(last_event, stream));
    *gate = 1;
    CUDA(cudaStreamSynchronize(stream));
    float ms;
    CUDA(cudaEventElapsedTime(&ms, first_event, last_event));
    times.seconds.push_back(ms * 1e-3 / calls);
  }
  return times;
}

static void print(const char *part, const char *what, const char *mode, size_t bytes, Times times, const char *more = "") {
  double median = times.quantile(0.5);
  printf("{\"part\": \"%s\", \"what\": \"%s\", \"mode\": \"%s\", \"bytes\": %zu, \"n\": %zu, \"median_us\": %.4f, \"p10_us\": %.4f,"
         " \"p90_us\": %.4f, \"gb_per_s\": %.4f%s}\n",
         part, what, mode, bytes, times.seconds.size(), median * 1e6, times.quantile(0.1) * 1e6, times.quantile(0.9) * 1e6,
         median > 0 ? bytes / median / 1e9 : 0.0, more);
  fflush(stdout);
}

// `call(n)` enqueues the n-th call, so that it can walk through memory.
static void all_modes(const char *part, const char *what, size_t bytes, const std::function<void(cudaStream_t, int)> &call,
                      bool can_hold = true) {
  int n = 0;
  Enqueue one = [&](cudaStream_t on) { call(on, n++); };
  Enqueue many = [&](cudaStream_t on) {
    for (int k = 0; k < BATCH; k++) call(on, n++);
  };
  print(part, what, "host_sync", bytes, by_host(one, 1));
  print(part, what, "loop", bytes, by_host(many, BATCH));
  if (!can_hold) return;
  print(part, what, "device_event", bytes, by_events(one, 1, true));
  print(part, what, "device_event_unheld", bytes, by_events(one, 1, false));
  print(part, what, "throughput", bytes, by_events(many, BATCH, true));
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  many(stream);
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphInstantiate(&replay, graph, 0));
  Enqueue launch = [&](cudaStream_t on) { CUDA(cudaGraphLaunch(replay, on)); };
  print(part, what, "graph", bytes, by_events(launch, BATCH, true));
  CUDA(cudaGraphExecDestroy(replay));
  CUDA(cudaGraphDestroy(graph));
}

// ---------------------------------------------------------------- clocks

static void clocks() {
  start();
  int khz;
  CUDA(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0));
  unsigned long long *ends;
  CUDA(cudaMalloc(&ends, 16));
  for (int n = 0; n < 3; n++) count_cycles<<<1, 1, 0, stream>>>(20000000LL, ends);  // wakes the GPU up
  CUDA(cudaStreamSynchronize(stream));
  print("clock", "two events", "device_event", 0, by_events([](cudaStream_t) {}, 1, true));
  print("clock", "empty kernel", "host_sync", 0, by_host([](cudaStream_t on) { nothing<<<1, 1, 0, on>>>(); }, 1));
  print("clock", "empty kernel", "device_event", 0, by_events([](cudaStream_t on) { nothing<<<1, 1, 0, on>>>(); }, 1, true));
  for (double us : {5.0, 20.0, 100.0, 1000.0, 20000.0}) {
    long long cycles = (long long)(us * 1e-3 * khz);
    Enqueue kernel = [&](cudaStream_t on) { count_cycles<<<1, 1, 0, on>>>(cycles, ends); };
    Times by_timer;
    for (int n = 0; n < 20; n++) {
      unsigned long long seen[2];
      kernel(stream);
      CUDA(cudaMemcpyAsync(seen, ends, 16, cudaMemcpyDeviceToHost, stream));
      CUDA(cudaStreamSynchronize(stream));
      by_timer.seconds.push_back((seen[1] - seen[0]) * 1e-9);
    }
    char what[64];
    snprintf(what, sizeof what, "kernel of %g us by %d kHz", us, khz);
    print("clock", what, "globaltimer", 0, by_timer);
    print("clock", what, "host_sync", 0, by_host(kernel, 1));
    print("clock", what, "device_event", 0, by_events(kernel, 1, true));
    print("clock", what, "device_event_unheld", 0, by_events(kernel, 1, false));
  }
}

// ---------------------------------------------------------------- copies

static void copies() {
  start();
  const size_t most = (size_t)256 << 20, pool = (size_t)512 << 20;  // walks through 512 MiB: beyond any cache
  char *allocated, *registered = (char *)aligned_alloc(4096, pool), *pageable = (char *)malloc(pool), *device, *other;
  double begin = now_s();
  CUDA(cudaHostAlloc((void **)&allocated, pool, cudaHostAllocDefault));
  double after_alloc = now_s();
  memset(registered, 1, pool);
  memset(pageable, 1, pool);
  double before_register = now_s();
  CUDA(cudaHostRegister(registered, pool, 0));  // as commbench pins numpy's memory
  printf("{\"part\": \"copy\", \"what\": \"pinning 512 MiB\", \"hostalloc_s\": %.4f, \"register_s\": %.4f}\n", after_alloc - begin,
         now_s() - before_register);
  CUDA(cudaMalloc(&device, pool));
  CUDA(cudaMalloc(&other, pool));
  cudaStream_t back;
  CUDA(cudaStreamCreateWithFlags(&back, cudaStreamNonBlocking));
  for (size_t bytes : {(size_t)8, (size_t)64 << 10, (size_t)1 << 20, (size_t)16 << 20, most}) {
    auto at = [&](int n) { return ((size_t)n * bytes) % (pool - bytes + 1) / 512 * 512; };
    for (auto &[name, host, held] :
         {std::tuple<const char *, char *, bool>{"hostalloc", allocated, true}, {"registered", registered, true}, {"pageable", pageable, false}}) {
      std::string to = std::string("h2d ") + name, from = std::string("d2h ") + name;
      char *memory = host;
      all_modes("copy", to.c_str(), bytes,
                [&](cudaStream_t on, int n) { CUDA(cudaMemcpyAsync(device + at(n), memory + at(n), bytes, cudaMemcpyHostToDevice, on)); }, held);
      all_modes("copy", from.c_str(), bytes,
                [&](cudaStream_t on, int n) { CUDA(cudaMemcpyAsync(memory + at(n), device + at(n), bytes, cudaMemcpyDeviceToHost, on)); }, held);
    }
    all_modes("copy", "d2d", bytes,
              [&](cudaStream_t on, int n) { CUDA(cudaMemcpyAsync(other + at(n), device + at(n), bytes, cudaMemcpyDeviceToDevice, on)); });
  }
  for (size_t bytes : {(size_t)16 << 20, most}) {  // both directions at once; bytes are those of one direction
    cudaEvent_t begun, ended;
    CUDA(cudaEventCreateWithFlags(&begun, cudaEventDisableTiming));
    CUDA(cudaEventCreateWithFlags(&ended, cudaEventDisableTiming));
    Enqueue both = [&](cudaStream_t on) {
      CUDA(cudaEventRecord(begun, on));
      CUDA(cudaStreamWaitEvent(back, begun, 0));
      CUDA(cudaMemcpyAsync(device, allocated, bytes, cudaMemcpyHostToDevice, on));
      CUDA(cudaMemcpyAsync(allocated + most, other, bytes, cudaMemcpyDeviceToHost, back));
      CUDA(cudaEventRecord(ended, back));
      CUDA(cudaStreamWaitEvent(on, ended, 0));
    };
    print("copy", "h2d and d2h hostalloc", "host_sync", bytes, by_host(both, 1));
    print("copy", "h2d and d2h hostalloc", "device_event", bytes, by_events(both, 1, true));
  }
}

// ---------------------------------------------------------------- CUDA IPC: two processes on one GPU

static void ipc() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) exit(1);
  const size_t most = (size_t)256 << 20;
  pid_t child = fork();  // before CUDA's first call
  if (child == 0) {
    start();
    char *memory;
    cudaIpcMemHandle_t handle;
    CUDA(cudaMalloc(&memory, most));
    CUDA(cudaMemset(memory, 0, most));
    CUDA(cudaIpcGetMemHandle(&handle, memory));
    if (write(ends[1], &handle, sizeof handle) != (ssize_t)sizeof handle) _exit(1);
    char word;
    while (read(ends[1], &word, 1) == 1 && word != 'q') {  // what the peer has copied here
      unsigned char seen;
      CUDA(cudaMemcpy(&seen, memory, 1, cudaMemcpyDeviceToHost));
      if (write(ends[1], &seen, 1) != 1) _exit(1);
    }
    _exit(0);
  }
  close(ends[1]);
  start();
  cudaIpcMemHandle_t handle;
  size_t got = 0;
  while (got < sizeof handle) {
    ssize_t part = read(ends[0], (char *)&handle + got, sizeof handle - got);
    if (part <= 0) {
      printf("{\"part\": \"ipc\", \"error\": \"the other process gave no handle\"}\n");
      return;
    }
    got += part;
  }
  char *mine, *local, *theirs;
  CUDA(cudaMalloc(&mine, most));
  CUDA(cudaMalloc(&local, most));
  double begin = now_s();
  CUDA(cudaIpcOpenMemHandle((void **)&theirs, handle, cudaIpcMemLazyEnablePeerAccess));
  double opened_s = now_s() - begin;
  CUDA(cudaMemset(mine, 42, most));
  CUDA(cudaMemcpy(theirs, mine, most, cudaMemcpyDeviceToDevice));
  CUDA(cudaDeviceSynchronize());  // a copy within a device returns before its end
  unsigned char seen = 0;
  bool right = write(ends[0], "r", 1) == 1 && read(ends[0], &seen, 1) == 1 && seen == 42;
  printf("{\"part\": \"ipc\", \"what\": \"opened\", \"seconds\": %.6f, \"the other process sees the bytes\": %s}\n", opened_s, right ? "true" : "false");
  for (size_t bytes : {(size_t)8, (size_t)64 << 10, (size_t)1 << 20, (size_t)16 << 20, most}) {
    all_modes("ipc", "d2d within", bytes, [&](cudaStream_t on, int) { CUDA(cudaMemcpyAsync(local, mine, bytes, cudaMemcpyDeviceToDevice, on)); });
    all_modes("ipc", "d2d to the other process", bytes,
              [&](cudaStream_t on, int) { CUDA(cudaMemcpyAsync(theirs, mine, bytes, cudaMemcpyDeviceToDevice, on)); });
  }
  CUDA(cudaIpcCloseMemHandle(theirs));
  if (write(ends[0], "q", 1) != 1) return;
  waitpid(child, nullptr, 0);
}

// ---------------------------------------------------------------- two processes that take turns on one GPU

// Each copies into the memory of the other, waits, and then lets the other one copy.
static void turns() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) exit(1);
  auto *turn = (std::atomic<long> *)mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pid_t child = fork();  // before CUDA's first call
  const int rank = child == 0 ? 1 : 0, end = ends[rank];
  start();
  const size_t most = (size_t)16 << 20;
  char *mine, *from, *theirs;
  CUDA(cudaMalloc(&mine, most));
  CUDA(cudaMalloc(&from, most));
  cudaIpcMemHandle_t handle;
  CUDA(cudaIpcGetMemHandle(&handle, mine));
  if (write(end, &handle, sizeof handle) != (ssize_t)sizeof handle) _exit(1);
  if (recv(end, &handle, sizeof handle, MSG_WAITALL) != (ssize_t)sizeof handle) _exit(1);
  CUDA(cudaIpcOpenMemHandle((void **)&theirs, handle, cudaIpcMemLazyEnablePeerAccess));
  long next = rank;
  for (size_t bytes : {(size_t)8, (size_t)1 << 20, most}) {
    Times times;
    for (int n = 0; n < 220; n++) {
      double begin = now_s();
      while (turn->load() != next) {
      }
      CUDA(cudaMemcpyAsync(theirs, from, bytes, cudaMemcpyDeviceToDevice, stream));
      CUDA(cudaStreamSynchronize(stream));
      turn->store(next + 1);
      next += 2;
      if (n >= 20) times.seconds.push_back((now_s() - begin) / 2);  // of a turn
    }
    if (rank == 0) print("turns", "half a round trip", "host_sync", bytes, times);
  }
  CUDA(cudaIpcCloseMemHandle(theirs));
  if (rank == 1) _exit(0);
  waitpid(child, nullptr, 0);
}

// ---------------------------------------------------------------- NCCL, one rank

static void nccl() {
  open_nccl();
  start();
  int version;
  Id id;
  Comm comm;
  NCCL(getVersion(&version));
  double begin = now_s();
  NCCL(getUniqueId(&id));
  NCCL(initRank(&comm, 1, id, 0));
  printf("{\"part\": \"nccl\", \"what\": \"opened\", \"version\": %d, \"seconds\": %.4f}\n", version, now_s() - begin);
  const size_t most = (size_t)64 << 20;
  float *from, *into;
  CUDA(cudaMalloc(&from, most));
  CUDA(cudaMalloc(&into, most));
  CUDA(cudaMemset(from, 0, most));
  for (size_t bytes : {(size_t)8, (size_t)1 << 20, most}) {
    size_t count = bytes / sizeof(float);
    all_modes("nccl", "all_gather", bytes, [&](cudaStream_t on, int) { NCCL(allGather(from, into, count, FLOAT, comm, on)); });
    all_modes("nccl", "all_reduce sum in place", bytes,
              [&](cudaStream_t on, int) { NCCL(allReduce(from, from, count, FLOAT, SUM, comm, on)); });
    // the only collective of one rank that is a kernel of NCCL (onerank.cu)
    all_modes("nccl", "all_reduce avg in place", bytes,
              [&](cudaStream_t on, int) { NCCL(allReduce(from, from, count, FLOAT, AVG, comm, on)); });
    all_modes("nccl", "message to itself", bytes, [&](cudaStream_t on, int) {
      NCCL(groupStart());
      NCCL(sendTo(from, count, FLOAT, 0, comm, on));
      NCCL(recvFrom(into, count, FLOAT, 0, comm, on));
      NCCL(groupEnd());
    });
  }
  NCCL(destroy(comm));
}

// ---------------------------------------------------------------- NCCL, two ranks on this GPU

// Needs NCCL 2.30 with NCCL_MULTI_RANK_GPU_ENABLE=1; or, with any version and over sockets only, HOSTID=1 here.

// What both processes see.
struct Shared {
  std::atomic<long> arrived;
  double seconds[2];
};
static Shared *shared;
static pid_t child;
static int own_rank, own_end;  // of a socket to the other rank

static void start_two() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) exit(1);
  shared = (Shared *)mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  child = fork();  // before CUDA's first call
  own_rank = child == 0 ? 1 : 0;
  own_end = ends[own_rank];
  if (own_rank == 1) prctl(PR_SET_PDEATHSIG, SIGKILL);
  else signal(SIGCHLD, [](int) {  // or this rank would wait for one that has failed
    int status;
    if (waitpid(child, &status, WNOHANG) > 0 && status) _exit(1);
  });
  if (getenv("HOSTID")) setenv("NCCL_HOSTID", own_rank ? "one" : "zero", 1);
  open_nccl();
  start();
}

static void end_two() {
  if (own_rank == 1) _exit(0);
  waitpid(child, nullptr, 0);
}

static Comm communicator_of_two() {
  Id id;
  Comm comm;
  if (own_rank == 0) {
    NCCL(getUniqueId(&id));
    if (write(own_end, &id, sizeof id) != (ssize_t)sizeof id) exit(1);
  } else if (recv(own_end, &id, sizeof id, MSG_WAITALL) != (ssize_t)sizeof id) {
    _exit(1);
  }
  NCCL(initRank(&comm, 2, id, own_rank));
  return comm;
}

static void two() {
  start_two();
  int rank = own_rank;
  double begin = now_s();
  Comm comm = communicator_of_two();
  if (rank == 0) printf("{\"part\": \"two\", \"what\": \"opened\", \"seconds\": %.4f}\n", now_s() - begin);
  fflush(stdout);
  const size_t most = (size_t)16 << 20;
  float *from, *into;
  CUDA(cudaMalloc(&from, most));
  CUDA(cudaMalloc(&into, 2 * most));
  for (size_t bytes : {(size_t)8, (size_t)1 << 20, most}) {
    size_t count = bytes / sizeof(float);
    std::vector<float> host(count, rank + 1.0f);
    CUDA(cudaMemcpy(from, host.data(), bytes, cudaMemcpyHostToDevice));
    for (const char *what : {"all_reduce", "send and receive"}) {
      Times times;
      for (int n = 0; n < 12; n++) {
        begin = now_s();
        if (what[0] == 'a') {
          NCCL(allReduce(from, into, count, FLOAT, SUM, comm, stream));
        } else {
          NCCL(groupStart());
          NCCL(sendTo(from, count, FLOAT, 1 - rank, comm, stream));
          NCCL(recvFrom(into, count, FLOAT, 1 - rank, comm, stream));
          NCCL(groupEnd());
        }
        CUDA(cudaStreamSynchronize(stream));
        if (n >= 2) times.seconds.push_back(now_s() - begin);
      }
      CUDA(cudaMemcpy(host.data(), into, bytes, cudaMemcpyDeviceToHost));
      float expected = what[0] == 'a' ? 3.0f : 2.0f - rank;
      size_t wrong = std::count_if(host.begin(), host.end(), [&](float value) { return value != expected; });
      char more[64];
      snprintf(more, sizeof more, ", \"wrong\": %zu", wrong);
      if (rank == 0) print("two", what, "host_sync", bytes, times, more);
      std::fill(host.begin(), host.end(), rank + 1.0f);
    }
  }
  NCCL(destroy(comm));
  end_two();
}

// Returns when both ranks are here.
static void meet() {
  long round = shared->arrived.fetch_add(1) / 2;
  while (shared->arrived.load() < 2 * (round + 1)) {
  }
}

// `once` returns this rank's seconds of one call; the slower rank counts.
static Times by_both(const std::function<double()> &once, int repetitions = 20) {
  Times times;
  for (int n = -3; n < repetitions; n++) {
    meet();
    shared->seconds[own_rank] = once();
    meet();
    if (n >= 0) times.seconds.push_back(std::max(shared->seconds[0], shared->seconds[1]));
  }
  return times;
}

// As by_events, but the ranks pass a reduction of one element between the gate and the first event.
static Times held_by_both(const Enqueue &once, const Enqueue &barrier) {
  return by_both([&] {
    *gate = 0;
    wait_for_gate<<<1, 1, 0, stream>>>(gate_on_device, 2000000000LL);
    barrier(stream);
    CUDA(cudaEventRecord(first_event, stream));
    once(stream);
    CUDA(cudaEventRecord(last_event, stream));
    *gate = 1;
    CUDA(cudaStreamSynchronize(stream));
    float ms;
    CUDA(cudaEventElapsedTime(&ms, first_event, last_event));
    return ms * 1e-3 / BATCH;
  });
}

// `loop` as nccl-tests times a collective: calls, one synchronisation. `throughput` as commbench does.
static void time_launched(const char *what, size_t bytes, const Enqueue &call, const Enqueue &barrier) {
  const int calls = 100;
  Times loop = by_both([&] {
    double begin = now_s();
    for (int k = 0; k < calls; k++) call(stream);
    CUDA(cudaStreamSynchronize(stream));
    return (now_s() - begin) / calls;
  });
  Times throughput = held_by_both(
      [&](cudaStream_t on) {
        for (int k = 0; k < BATCH; k++) call(on);
      },
      barrier);
  if (own_rank != 0) return;
  print("windows", what, "loop", bytes, loop);
  print("windows", what, "throughput", bytes, throughput);
}

static void time_captured(const char *what, size_t bytes, const Enqueue &call, const Enqueue &barrier) {
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int k = 0; k < BATCH; k++) call(stream);
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphInstantiate(&replay, graph, 0));
  Times replayed = held_by_both([&](cudaStream_t on) { CUDA(cudaGraphLaunch(replay, on)); }, barrier);
  CUDA(cudaGraphExecDestroy(replay));
  CUDA(cudaGraphDestroy(graph));
  if (own_rank == 0) print("windows", what, "graph", bytes, replayed);
}

// Collectives out of place, on memory that is not registered, registered (ncclCommRegister), and in windows.
// A communicator that has been captured makes each later call wait for an event, so graphs come last.
static void windows() {
  start_two();
  if (!registerWindow) {
    if (own_rank == 0) printf("{\"error\": \"this NCCL has no windows; 2.27 has\"}\n");
    return end_two();
  }
  for (const std::string registration : {"none", "local", "symmetric"}) {
    for (size_t bytes : {(size_t)8, (size_t)64 << 10, (size_t)1 << 20, (size_t)16 << 20}) {
      float *from, *into, *one;
      void *handles[2] = {};
      Comm comm = communicator_of_two();
      const size_t allocated = std::max(bytes, (size_t)2 << 20);  // as much as torch's pools take
      CUDA(cudaMalloc(&one, sizeof(float)));
      CUDA(cudaMemset(one, 0, sizeof(float)));
      for (float **buffer : {&from, &into}) {
        if (registration == "none") CUDA(cudaMalloc(buffer, allocated));
        else NCCL(allocate((void **)buffer, allocated));
      }
      for (int n = 0; n < 2; n++) {
        void *buffer = n ? into : from;
        if (registration == "local") NCCL(registerBuffer(comm, buffer, allocated, &handles[n]));
        if (registration == "symmetric") NCCL(registerWindow(comm, buffer, allocated, &handles[n], COLLECTIVE_SYMMETRIC));
      }
      const size_t count = bytes / sizeof(float);
      std::vector<float> host(count, own_rank + 1.0f);
      CUDA(cudaMemcpy(from, host.data(), bytes, cudaMemcpyHostToDevice));
      Enqueue barrier = [&](cudaStream_t on) { NCCL(allReduce(one, one, 1, FLOAT, SUM, comm, on)); };
      Enqueue reduce = [&](cudaStream_t on) { NCCL(allReduce(from, into, count, FLOAT, SUM, comm, on)); };
      Enqueue gather = [&](cudaStream_t on) { NCCL(allGather(from, into, count / 2, FLOAT, comm, on)); };
      Enqueue scatter = [&](cudaStream_t on) { NCCL(reduceScatter(from, into, count / 2, FLOAT, SUM, comm, on)); };
      reduce(stream);
      CUDA(cudaStreamSynchronize(stream));
      CUDA(cudaMemcpy(host.data(), into, bytes, cudaMemcpyDeviceToHost));
      long wrong = std::count_if(host.begin(), host.end(), [](float value) { return value != 3.0f; });
      if (own_rank == 0) printf("{\"part\": \"windows\", \"what\": \"%s\", \"bytes\": %zu, \"wrong\": %ld}\n", registration.c_str(), bytes, wrong);
      const std::pair<const char *, Enqueue> calls[] = {{"all_reduce ", reduce}, {"all_gather ", gather}, {"reduce_scatter ", scatter}};
      for (auto &[name, call] : calls) time_launched((name + registration).c_str(), bytes, call, barrier);
      for (auto &[name, call] : calls) time_captured((name + registration).c_str(), bytes, call, barrier);
      for (int n = 0; n < 2; n++) {
        if (registration == "local") NCCL(deregisterBuffer(comm, handles[n]));
        if (registration == "symmetric") NCCL(deregisterWindow(comm, handles[n]));
        if (registration == "none") CUDA(cudaFree(n ? into : from));
        else NCCL(release(n ? into : from));
      }
      NCCL(destroy(comm));
      CUDA(cudaFree(one));
    }
  }
  end_two();
}

// The time until a communicator is open, or has done its first call: ncclCommInitRank, ncclCommSplit.
static void init() {
  start_two();
  Comm whole = communicator_of_two();
  float *one;
  CUDA(cudaMalloc(&one, sizeof(float)));
  CUDA(cudaMemset(one, 0, sizeof(float)));
  for (const std::string what : {"communicator_init", "communicator_split"}) {
    for (const std::string until : {"open", "first_call"}) {
      Comm comm;
      auto once = [&] {
        double begin = now_s();
        if (what == "communicator_init") comm = communicator_of_two();
        else NCCL(split(whole, 0, own_rank, &comm, nullptr));
        if (until == "first_call") {
          NCCL(allReduce(one, one, 1, FLOAT, SUM, comm, stream));
          CUDA(cudaStreamSynchronize(stream));
        }
        double seconds = now_s() - begin;
        NCCL(destroy(comm));
        return seconds;
      };
      Times times = by_both(once, 7);
      if (own_rank == 0) print("init", (what + " " + until).c_str(), "host_sync", 0, times);
    }
  }
  NCCL(destroy(whole));
  end_two();
}

int main(int count, char **words) {
  std::string part = count > 1 ? words[1] : "";
  if (count > 2) budget_s = atof(words[2]);
  if (part == "clock") clocks();
  else if (part == "copy") copies();
  else if (part == "ipc") ipc();
  else if (part == "turns") turns();
  else if (part == "nccl") nccl();
  else if (part == "two") two();
  else if (part == "windows") windows();
  else if (part == "init") init();
  else {
    fprintf(stderr, "truth clock|copy|ipc|turns|nccl|two|windows|init [SECONDS of each timing]\n");
    return 2;
  }
  return 0;
}
