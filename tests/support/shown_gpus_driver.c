/* A stand-in for libnvidia-ml.so.1 and libcuda.so.1: shows the machine that the text file $SHOWN_GPUS describes.
 *
 * A line is `key value`. Before the first `gpu`: `driver`, `cuda`, `error FUNCTION CODE` (every call of it fails with
 * CODE). `gpu UUID` begins a GPU; its lines: `name`, `bus`, `memory`, `used`, `capability`, `mig`, `part UUID` (what
 * CUDA shows of it), `links`, `pcie`, `process PID BYTES`, `clock`, `reasons`, `field ID SCOPE TYPE
 * VALUE`, `fails FUNCTION CODE` (for this GPU alone), `rank` (its place when CUDA counts the fastest first).
 * `peer I J RANK ACCESS ATOMICS` follows all GPUs. While $SHOWN_GPUS_LOST is set they are all lost. Compiled with -DOLD
 * it lacks what a driver of 2020 did not have.
 * Layouts and numbers are those of nvml.h and cuda.h.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MOST = 16, NOT_SUPPORTED = 3, NOT_FOUND = 6, INVALID = 2, SMALL = 7, CUDA_NO_DEVICE = 100, CUDA_INVALID = 101 };

typedef struct {
    char function[80];
    int code;
} Failure;

typedef struct {
    unsigned id, scope, type;
    double value;
} Field;

typedef struct {
    char uuid[64], part[64], name[96], bus[32];
    unsigned long long memory, used;
    int major, minor, mig, links, pcie[4], clock, rank, processes, fields, failures;
    long long reasons;
    unsigned pid[MOST];
    unsigned long long bytes[MOST];
    Field field[128];
    Failure failure[MOST];
} Gpu;

typedef struct {
    int source, target, value[4];
} Peer;

static Gpu gpus[MOST];
static Peer peers[MOST * MOST];
static Failure failures[MOST];
static char driver_version[64] = "580.65.06";
static int count = -1, peer_count, failure_count, cuda_version = 13000;

static void gpu_line(Gpu *gpu, const char *key, char *rest) {
    Field *field = gpu ? &gpu->field[gpu->fields] : NULL;
    Failure *failure = gpu ? &gpu->failure[gpu->failures] : NULL;
    if (!gpu) key = "before any gpu";
    if (!strcmp(key, "name")) snprintf(gpu->name, sizeof gpu->name, "%s", rest);
    else if (!strcmp(key, "bus")) sscanf(rest, "%31s", gpu->bus);
    else if (!strcmp(key, "part")) sscanf(rest, "%63s", gpu->part);
    else if (!strcmp(key, "memory")) sscanf(rest, "%llu", &gpu->memory);
    else if (!strcmp(key, "used")) sscanf(rest, "%llu", &gpu->used);
    else if (!strcmp(key, "capability")) sscanf(rest, "%d %d", &gpu->major, &gpu->minor);
    else if (!strcmp(key, "mig")) sscanf(rest, "%d", &gpu->mig);
    else if (!strcmp(key, "links")) sscanf(rest, "%d", &gpu->links);
    else if (!strcmp(key, "pcie")) sscanf(rest, "%d %d %d %d", gpu->pcie, gpu->pcie + 1, gpu->pcie + 2, gpu->pcie + 3);
    else if (!strcmp(key, "clock")) sscanf(rest, "%d", &gpu->clock);
    else if (!strcmp(key, "reasons")) sscanf(rest, "%lli", &gpu->reasons);
    else if (!strcmp(key, "rank")) sscanf(rest, "%d", &gpu->rank);
    else if (!strcmp(key, "process"))
        gpu->processes += 2 == sscanf(rest, "%u %llu", &gpu->pid[gpu->processes], &gpu->bytes[gpu->processes]);
    else if (!strcmp(key, "field"))
        gpu->fields += 4 == sscanf(rest, "%u %u %u %lf", &field->id, &field->scope, &field->type, &field->value);
    else if (!strcmp(key, "fails"))
        gpu->failures += 2 == sscanf(rest, "%79s %d", failure->function, &failure->code);
    else {
        fprintf(stderr, "driver.c: unknown line: %s %s\n", key, rest);
        abort();
    }
}

static void line(char *text) {
    char key[32], *rest = strchr(text, ' ');
    if (sscanf(text, "%31s", key) != 1) return;
    rest = rest ? rest + 1 : text + strlen(text);
    if (!strcmp(key, "gpu")) {
        memset(&gpus[count], 0, sizeof gpus[count]);
        gpus[count].links = gpus[count].mig = -1;
        gpus[count].rank = count;
        sscanf(rest, "%63s", gpus[count++].uuid);
    } else if (!strcmp(key, "peer")) {
        Peer *peer = &peers[peer_count++];
        sscanf(rest, "%d %d %d %d %d", &peer->source, &peer->target, peer->value + 1, peer->value + 2, peer->value + 3);
    } else if (count) gpu_line(&gpus[count - 1], key, rest);
    else if (!strcmp(key, "driver")) sscanf(rest, "%63s", driver_version);
    else if (!strcmp(key, "cuda")) sscanf(rest, "%d", &cuda_version);
    else if (!strcmp(key, "error"))
        failure_count += 2 == sscanf(rest, "%79s %d", failures[failure_count].function, &failures[failure_count].code);
    else gpu_line(NULL, key, rest);
}

static void load(void) {
    char text[512];
    FILE *file;
    if (count >= 0) return;
    count = 0;
    file = fopen(getenv("SHOWN_GPUS") ? getenv("SHOWN_GPUS") : "", "r");
    while (file && fgets(text, sizeof text, file)) {
        text[strcspn(text, "\n")] = 0;
        line(text);
    }
    if (file) fclose(file);
}

static int find(const Failure *known, int n, const char *function) {
    for (int i = 0; i < n; i++)
        if (!strcmp(known[i].function, function)) return known[i].code;
    return 0;
}

static int fails(const Gpu *gpu, const char *function) {
    int code;
    load();
    if (gpu && getenv("SHOWN_GPUS_LOST")) return 15;
    code = find(failures, failure_count, function);
    return code || !gpu ? code : find(gpu->failure, gpu->failures, function);
}

#define MAY_FAIL(gpu)                              \
    do {                                           \
        int code_ = fails(gpu, __func__);          \
        if (code_) return code_;                   \
    } while (0)

/* ---------------------------------------------------------------- nvml */

typedef struct {
    char bus_legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} Pci;

typedef struct {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
} ProcessInfo;

typedef struct {
    unsigned id, scope;
    int64_t timestamp, latency;
    unsigned type;
    int status;
    union {
        double d;
        unsigned ui;
        unsigned long ul;
        unsigned long long ull;
        long long sll;
        int si;
        unsigned short us;
    } value;
} FieldValue;

int nvmlInitWithFlags(unsigned flags) { (void)flags; MAY_FAIL(NULL); return 0; }
int nvmlShutdown(void) { return 0; }

const char *nvmlErrorString(int code) {
    switch (code) {
    case 3: return "Not Supported";
    case 6: return "Not Found";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    MAY_FAIL(NULL);
    snprintf(text, size, "%s", driver_version);
    return 0;
}

int nvmlSystemGetCudaDriverVersion(int *version) { MAY_FAIL(NULL); *version = cuda_version; return 0; }
#ifndef OLD
int nvmlSystemGetCudaDriverVersion_v2(int *version) { MAY_FAIL(NULL); *version = cuda_version; return 0; }
#endif
int nvmlDeviceGetCount_v2(unsigned *n) { MAY_FAIL(NULL); *n = count; return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu) {
    load();
    if ((int)index >= count) return INVALID;
    MAY_FAIL(&gpus[index]);
    *gpu = &gpus[index];
    return 0;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Gpu **gpu) {
    MAY_FAIL(NULL);
    for (*gpu = gpus; *gpu < gpus + count; ++*gpu)
        if (!strcmp((*gpu)->uuid, uuid) || (*(*gpu)->part && !strcmp((*gpu)->part, uuid))) return 0;
    return NOT_FOUND;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, Gpu **gpu) {
    MAY_FAIL(NULL);
    for (*gpu = gpus; *gpu < gpus + count; ++*gpu)  /* the domain may have four digits or eight */
        if (strlen(bus) >= 12 && !strcasecmp((*gpu)->bus + strlen((*gpu)->bus) - 12, bus + strlen(bus) - 12)) return 0;
    return NOT_FOUND;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Gpu *part, Gpu **whole) { MAY_FAIL(part); *whole = part; return 0; }
int nvmlDeviceGetUUID(Gpu *gpu, char *text, unsigned n) { MAY_FAIL(gpu); snprintf(text, n, "%s", gpu->uuid); return 0; }
int nvmlDeviceGetName(Gpu *gpu, char *text, unsigned n) { MAY_FAIL(gpu); snprintf(text, n, "%s", gpu->name); return 0; }

int nvmlDeviceGetPciInfo_v3(Gpu *gpu, Pci *pci) {
    MAY_FAIL(gpu);
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%s", gpu->bus);
    return 0;
}

int nvmlDeviceGetMemoryInfo(Gpu *gpu, unsigned long long *memory) {
    MAY_FAIL(gpu);
    memory[0] = gpu->memory, memory[1] = gpu->memory - gpu->used, memory[2] = gpu->used;
    return 0;
}

int nvmlDeviceGetMigMode(Gpu *gpu, unsigned *current, unsigned *pending) {
    MAY_FAIL(gpu);
    *current = *pending = gpu->mig;
    return gpu->mig < 0 ? NOT_SUPPORTED : 0;
}

int nvmlDeviceGetCudaComputeCapability(Gpu *gpu, int *major, int *minor) {
    MAY_FAIL(gpu);
    *major = gpu->major, *minor = gpu->minor;
    return 0;
}

int nvmlDeviceGetCurrPcieLinkGeneration(Gpu *gpu, unsigned *value) { MAY_FAIL(gpu); *value = gpu->pcie[0]; return 0; }
int nvmlDeviceGetMaxPcieLinkGeneration(Gpu *gpu, unsigned *value) { MAY_FAIL(gpu); *value = gpu->pcie[1]; return 0; }
int nvmlDeviceGetCurrPcieLinkWidth(Gpu *gpu, unsigned *value) { MAY_FAIL(gpu); *value = gpu->pcie[2]; return 0; }
int nvmlDeviceGetMaxPcieLinkWidth(Gpu *gpu, unsigned *value) { MAY_FAIL(gpu); *value = gpu->pcie[3]; return 0; }

int nvmlDeviceGetNvLinkState(Gpu *gpu, unsigned link, unsigned *active) {
    MAY_FAIL(gpu);
    if (gpu->links < 0) return NOT_SUPPORTED;
    *active = (int)link < gpu->links;
    return link < 18 ? 0 : INVALID;
}

static int processes(Gpu *gpu, unsigned *n, ProcessInfo *found) {
    if (!gpu->processes) return *n = 0, 0;
    if (!found || (int)*n < gpu->processes) return *n = gpu->processes, SMALL;
    *n = gpu->processes;
    for (unsigned i = 0; i < *n; i++) found[i] = (ProcessInfo){gpu->pid[i], gpu->bytes[i], -1, -1};
    return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v2(Gpu *gpu, unsigned *n, ProcessInfo *found) {
    MAY_FAIL(gpu);
    return processes(gpu, n, found);
}
#ifndef OLD
int nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, unsigned *n, ProcessInfo *found) {
    MAY_FAIL(gpu);
    return processes(gpu, n, found);
}
#endif

int nvmlDeviceGetClockInfo(Gpu *gpu, unsigned type, unsigned *mhz) {
    MAY_FAIL(gpu);
    *mhz = type == 1 ? gpu->clock : 2619;
    return 0;
}

int nvmlDeviceGetMaxClockInfo(Gpu *gpu, unsigned type, unsigned *mhz) {
    MAY_FAIL(gpu);
    *mhz = type == 1 ? 1980 : 2619;
    return 0;
}

int nvmlDeviceGetTemperature(Gpu *gpu, unsigned sensor, unsigned *celsius) {
    MAY_FAIL(gpu);
    *celsius = sensor == 0 ? 41 : 0;
    return 0;
}

int nvmlDeviceGetPowerUsage(Gpu *gpu, unsigned *milliwatts) { MAY_FAIL(gpu); *milliwatts = 71500; return 0; }

int nvmlDeviceGetCurrentClocksThrottleReasons(Gpu *gpu, unsigned long long *mask) {
    MAY_FAIL(gpu);
    *mask = gpu->reasons;
    return 0;
}
#ifndef OLD
int nvmlDeviceGetCurrentClocksEventReasons(Gpu *gpu, unsigned long long *mask) {
    MAY_FAIL(gpu);
    *mask = gpu->reasons;
    return 0;
}
#endif

static void answer(const Gpu *gpu, FieldValue *asked, int calls) {
    asked->status = NOT_SUPPORTED;
    for (const Field *field = gpu->field; field < gpu->field + gpu->fields; field++) {
        double value = field->value + calls;  /* counters go on */
        if (field->id != asked->id || field->scope != asked->scope) continue;
        asked->status = 0, asked->type = field->type;
        memset(&asked->value, 0xee, sizeof asked->value);  /* the rest of the union is nobody's business */
        if (field->type == 0) asked->value.d = value;
        if (field->type == 1) asked->value.ui = (unsigned)value;
        if (field->type == 3) asked->value.ull = (unsigned long long)value;
        if (field->type == 5) asked->value.si = (int)value;
        if (field->type == 6) asked->value.us = (unsigned short)value;
    }
}

int nvmlDeviceGetFieldValues(Gpu *gpu, int n, FieldValue *asked) {
    static int calls;
    MAY_FAIL(gpu);
    for (int i = 0; i < n; i++) answer(gpu, &asked[i], calls);
    calls++;
    return 0;
}

/* ---------------------------------------------------------------- cuda */

int cuDriverGetVersion(int *version) {
    load();
    *version = cuda_version;
    return 0;
}

static int visible[MOST], visible_count = -1;

static int ordered(int place) {
    const char *order = getenv("CUDA_DEVICE_ORDER");
    if (order && !strcmp(order, "PCI_BUS_ID")) return place;
    for (int i = 0; i < count; i++)
        if (gpus[i].rank == place) return i;
    return -1;
}

static int named(const char *entry, size_t n) {
    int number = n && *entry >= '0' && *entry <= '9' ? atoi(entry) : -1;
    for (int i = 0; i < count; i++)
        if (n > 4 && (!strncmp(gpus[i].uuid, entry, n) || !strncmp(gpus[i].part, entry, n))) return i;
    return number >= 0 && number < count ? ordered(number) : -1;
}

int cuInit(unsigned flags) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    (void)flags;
    MAY_FAIL(NULL);
    visible_count = 0;
    if (!list)
        for (int i = 0; i < count; i++) visible[visible_count++] = ordered(i);
    while (list && *list) {
        size_t n = strcspn(list, ",");
        int found = named(list, n);
        if (found < 0) break;
        visible[visible_count++] = found;
        list += n + (list[n] == ',');
    }
    return visible_count ? 0 : CUDA_NO_DEVICE;
}

int cuGetErrorName(int code, const char **name) {
    *name = code == CUDA_NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : code == CUDA_INVALID ? "CUDA_ERROR_INVALID_DEVICE" : NULL;
    return *name ? 0 : 1;
}

static Gpu *shown(int device) {
    return device >= 0 && device < visible_count ? &gpus[visible[device]] : NULL;
}

#define DEVICE_OR_FAIL(device)                     \
    Gpu *gpu = shown(device);                      \
    if (!gpu) return CUDA_INVALID;                 \
    MAY_FAIL(gpu)

int cuDeviceGetCount(int *n) { MAY_FAIL(NULL); *n = visible_count; return 0; }
int cuDeviceGet(int *device, int ordinal) { DEVICE_OR_FAIL(ordinal); *device = ordinal; return 0; }

static int uuid_bytes(const char *text, unsigned char *bytes) {
    int n = 0;
    for (text += 4; *text && n < 16; text++)
        if (*text != '-') sscanf(text++, "%2hhx", &bytes[n++]);
    return n == 16 ? 0 : CUDA_INVALID;
}

int cuDeviceGetUuid(unsigned char *bytes, int device) { DEVICE_OR_FAIL(device); return uuid_bytes(gpu->uuid, bytes); }
#ifndef OLD
int cuDeviceGetUuid_v2(unsigned char *bytes, int device) {
    DEVICE_OR_FAIL(device);
    return uuid_bytes(*gpu->part ? gpu->part : gpu->uuid, bytes);
}
#endif

int cuDeviceGetName(char *text, int n, int device) {
    DEVICE_OR_FAIL(device);
    snprintf(text, n, "%s", gpu->name);
    return 0;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) { DEVICE_OR_FAIL(device); *bytes = gpu->memory; return 0; }

int cuDeviceGetPCIBusId(char *text, int n, int device) {  /* four digits of the domain */
    DEVICE_OR_FAIL(device);
    snprintf(text, n, "%s", gpu->bus + strlen(gpu->bus) - 12);
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    DEVICE_OR_FAIL(device);
    *value = attribute == 75 ? gpu->major : attribute == 76 ? gpu->minor : 50 << 20;
    return attribute == 75 || attribute == 76 || attribute == 38 ? 0 : 1;
}

static const Peer *peer(int source, int target) {
    for (int i = 0; i < peer_count; i++)
        if (&gpus[peers[i].source] == shown(source) && &gpus[peers[i].target] == shown(target)) return &peers[i];
    return NULL;
}

int cuDeviceGetP2PAttribute(int *value, int attribute, int source, int target) {
    const Peer *found = peer(source, target);
    DEVICE_OR_FAIL(source);
    if (attribute < 1 || attribute > 3 || source == target) return 1;
    *value = found ? found->value[attribute] : 0;
    return 0;
}
