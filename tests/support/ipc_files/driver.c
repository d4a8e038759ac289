/* A libcuda.so.1 of one GPU that is none: its memory is memory files of this host, which other processes can map.

   As on a GPU, a copy between device addresses happens when the host waits for the stream, and not before; a handle is
   64 bytes passed by value, opens only in another process, and only for the start of an allocation.
   COMMBENCH_REFUSE=NAME makes the call of that name answer CUDA_ERROR_INVALID_VALUE; with COMMBENCH_BYTES=N no more than
   N bytes can be allocated. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <unistd.h>

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, MAP_FAILED_HERE = 205 };
enum { MOST = 4096 };
typedef uint64_t Address;
typedef struct { unsigned char reserved[64]; } Handle;
typedef struct { int pid, file; uint64_t size; } Inside;
typedef struct { Address target, source; size_t size; } Move;

static struct { Address address; size_t size; int file; } allocations[MOST];
static int allocated;
static size_t total;
static Move *queue;
static size_t queued, room;
static __thread int current;

static int refused(const char *name) {
    const char *which = getenv("COMMBENCH_REFUSE");
    return which && strcmp(which, name) == 0;
}

static Address mapped(int file, size_t size) {
    void *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return pages == MAP_FAILED ? 0 : (Address)(uintptr_t)pages;
}

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : OK; }
int cuDriverGetVersion(int *version) { *version = 12040; return OK; }
int cuDeviceGetCount(int *count) { *count = 1; return OK; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal == 0 ? OK : INVALID_VALUE; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { memset(uuid, 7 + device, 16); return OK; }
int cuDeviceGetName(char *text, int size, int device) { (void)device; snprintf(text, size, "Stand-in GPU"); return OK; }
int cuDeviceGetPCIBusId(char *text, int size, int device) { (void)device; snprintf(text, size, "0000:01:00.0"); return OK; }
int cuDeviceTotalMem_v2(size_t *size, int device) { (void)device; *size = 1 << 30; return OK; }
int cuDeviceGetAttribute(int *value, int which, int device) { (void)which; (void)device; *value = 9; return OK; }
int cuDeviceGetP2PAttribute(int *value, int which, int a, int b) { (void)which; (void)a; (void)b; *value = 0; return OK; }

int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = &total; return OK; }
int cuCtxSetCurrent(void *context) { current = context == (void *)&total; return current ? OK : INVALID_CONTEXT; }
int cuStreamCreate(void **stream, unsigned flags) { *stream = &queue; return flags == 1 ? OK : INVALID_VALUE; }

int cuStreamSynchronize(void *stream) {
    if (stream != (void *)&queue) return INVALID_VALUE;
    for (size_t at = 0; at < queued; at++)
        memmove((void *)(uintptr_t)queue[at].target, (void *)(uintptr_t)queue[at].source, queue[at].size);
    queued = 0;
    return OK;
}

int cuCtxSynchronize(void) { return current ? cuStreamSynchronize(&queue) : INVALID_CONTEXT; }

int cuMemAlloc_v2(Address *address, size_t size) {
    const char *most = getenv("COMMBENCH_BYTES");
    if (!current) return INVALID_CONTEXT;
    if (allocated == MOST || (most && total + size > strtoull(most, NULL, 10))) return OUT_OF_MEMORY;
    int file = memfd_create("gpu", 0);
    if (file < 0 || ftruncate(file, size) != 0 || !(*address = mapped(file, size))) return OUT_OF_MEMORY;
    allocations[allocated].address = *address;
    allocations[allocated].size = size;
    allocations[allocated++].file = file;
    total += size;
    return OK;
}

int cuMemcpyHtoD_v2(Address target, const void *source, size_t size) {
    memcpy((void *)(uintptr_t)target, source, size);
    return OK;
}

int cuMemcpyDtoH_v2(void *target, Address source, size_t size) {
    memcpy(target, (void *)(uintptr_t)source, size);
    return OK;
}

int cuMemcpyDtoDAsync_v2(Address target, Address source, size_t size, void *stream) {
    if (stream != (void *)&queue) return INVALID_VALUE;
    if (queued == room) queue = realloc(queue, (room = 2 * room + 64) * sizeof *queue);
    queue[queued++] = (Move){target, source, size};
    return OK;
}

int cuIpcGetMemHandle(Handle *handle, Address address) {
    if (refused("cuIpcGetMemHandle")) return INVALID_VALUE;
    for (int at = 0; at < allocated; at++)
        if (allocations[at].address == address) {
            Inside inside = {getpid(), allocations[at].file, allocations[at].size};
            memset(handle, 0, sizeof *handle);
            memcpy(handle->reserved + 8, &inside, sizeof inside); /* zeros before it: no text ends it */
            return OK;
        }
    return INVALID_VALUE;
}

int cuIpcOpenMemHandle_v2(Address *address, Handle handle, unsigned flags) {
    Inside inside;
    char path[64];
    memcpy(&inside, handle.reserved + 8, sizeof inside);
    if (refused("cuIpcOpenMemHandle_v2") || flags != 1) return INVALID_VALUE;
    if (inside.pid == getpid()) return INVALID_CONTEXT;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", inside.pid, inside.file);
    int file = open(path, O_RDWR);
    if (file < 0) return MAP_FAILED_HERE;
    *address = mapped(file, inside.size);
    close(file);
    return *address ? OK : MAP_FAILED_HERE;
}

int cuIpcCloseMemHandle(Address address) { return address ? OK : INVALID_VALUE; }

int cuGetErrorName(int status, const char **name) {
    static const struct { int status; const char *name; } names[] = {
        {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},     {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"}, {MAP_FAILED_HERE, "CUDA_ERROR_MAP_FAILED"},
    };
    for (size_t at = 0; at < sizeof names / sizeof *names; at++)
        if (names[at].status == status) {
            *name = names[at].name;
            return OK;
        }
    return INVALID_VALUE;
}
