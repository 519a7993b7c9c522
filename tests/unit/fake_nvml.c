/* A libnvidia-ml.so.1 for tests, scripted by the file that FAKE_NVML names. It is read again at each call.
 *
 *   driver 580.1            the driver's version          init 18        nvmlInit answers error 18
 *   gpu GPU-a               a GPU, in the order of indices; what follows is about it
 *   missing                 it is not counted any more    index 15       its handle by index answers error 15
 *   CALL 42                 CALL answers 42               CALL !3        CALL answers error 3
 *   CALL ~600               CALL sleeps 600 s             * !15          all calls on this GPU answer error 15
 *   field 230 4             a field's value               field 230 !3   a field's error
 *   mig 1g.5gb 7 100 900    an instance: profile, id, bytes used, bytes free
 *   xid 79                  an event, told once           event 32768 2  an event of that type, told once
 *   late 3 xid 79           told once, 3 s after the file was first read with it
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MOST_GPUS 16
#define MOST_RULES 64
#define MOST_MIG 8
#define MOST_EVENTS 32
enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TIMEOUT = 10 };

typedef struct { char call[64]; char kind; double value; } rule;
typedef struct { char profile[32]; unsigned id; unsigned long long used, free; int gpu; } mig;
typedef struct {
    char uuid[96]; int missing, index_error, rules, migs; rule rule[MOST_RULES]; mig mig[MOST_MIG];
} gpu;
typedef struct { int gpu; unsigned long long type, data; double due; } event;
typedef struct { void *device; unsigned long long type, data; unsigned gi, ci; } event_record;
typedef struct {
    unsigned id, scope; long long timestamp, latency; unsigned type, result; unsigned long long value;
} field_record;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static gpu gpus[MOST_GPUS];
static int gpu_count, event_count, init_error;
static event events[MOST_EVENTS];
static char driver[80];
static struct timespec read_at;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void add_event(int on, double delay, unsigned long long type, unsigned long long data) {
    if (event_count < MOST_EVENTS) events[event_count++] = (event){on, type, data, now() + delay};
}

static void load(void) {
    const char *path = getenv("FAKE_NVML");
    struct stat st;
    if (!path || stat(path, &st)) return;
    if (st.st_mtim.tv_sec == read_at.tv_sec && st.st_mtim.tv_nsec == read_at.tv_nsec) return;
    read_at = st.st_mtim;
    FILE *file = fopen(path, "r");
    if (!file) return;
    memset(gpus, 0, sizeof gpus);
    gpu_count = event_count = init_error = 0;
    strcpy(driver, "580.105.08");
    char text[256], word[64], value[64], number[32];
    double delay;
    unsigned long long type, data;
    while (fgets(text, sizeof text, file)) {
        gpu *g = gpu_count ? &gpus[gpu_count - 1] : NULL;
        if (sscanf(text, "driver %79s", driver) == 1 || sscanf(text, "init %d", &init_error) == 1) continue;
        if (!strncmp(text, "gpu ", 4) && gpu_count < MOST_GPUS) {
            sscanf(text, "gpu %95s", gpus[gpu_count++].uuid);
            continue;
        }
        if (!g) continue;
        if (!strncmp(text, "missing", 7)) { g->missing = 1; continue; }
        if (sscanf(text, "index %d", &g->index_error) == 1) continue;
        if (sscanf(text, "late %lf xid %llu", &delay, &data) == 2) { add_event(gpu_count - 1, delay, 8, data); continue; }
        if (sscanf(text, "xid %llu", &data) == 1) { add_event(gpu_count - 1, 0, 8, data); continue; }
        if (sscanf(text, "event %llu %llu", &type, &data) == 2) { add_event(gpu_count - 1, 0, type, data); continue; }
        if (!strncmp(text, "mig ", 4) && g->migs < MOST_MIG) {
            mig *m = &g->mig[g->migs++];
            m->gpu = gpu_count - 1;
            sscanf(text, "mig %31s %u %llu %llu", m->profile, &m->id, &m->used, &m->free);
            continue;
        }
        if (g->rules == MOST_RULES) continue;
        rule *r = &g->rule[g->rules];
        char name[96] = "";
        if (sscanf(text, "field %31s %63s", number, value) == 2) snprintf(name, sizeof name, "field %s", number);
        else if (sscanf(text, "%63s %63s", word, value) == 2) snprintf(name, sizeof name, "%s", word);
        else continue;
        memcpy(r->call, name, sizeof r->call - 1);
        r->kind = value[0] == '!' || value[0] == '~' ? value[0] : '=';
        r->value = atof(r->kind == '=' ? value : value + 1);
        g->rules++;
    }
    fclose(file);
}

/* A handle is a GPU's place plus one, an instance's handle 1000 more a step. */
static int place(void *handle) { return (int)((size_t)handle % 1000) - 1; }

static int ask(int at, const char *call, double *value) {
    pthread_mutex_lock(&lock);
    load();
    if (at < 0 || at >= gpu_count) { pthread_mutex_unlock(&lock); return INVALID; }
    rule found = {"", 0, 0};
    for (int i = 0; i < gpus[at].rules; i++) {
        rule *r = &gpus[at].rule[i];
        if (!strcmp(r->call, call) || (!strcmp(r->call, "*") && strncmp(call, "field", 5) && !found.kind)) found = *r;
    }
    pthread_mutex_unlock(&lock);
    if (found.kind == '~') sleep((unsigned)found.value);
    if (found.kind == '!') return (int)found.value;
    if (!found.kind) return NOT_SUPPORTED;
    if (value) *value = found.value;
    return OK;
}

#define NUMBER(name, call, type) \
    int name(void *handle, type *out) { double v; int e = ask(place(handle), call, &v); if (!e) *out = (type)v; return e; }

int nvmlInitWithFlags(unsigned flags) { (void)flags; pthread_mutex_lock(&lock); load(); pthread_mutex_unlock(&lock); return init_error; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int error) { static char text[32]; snprintf(text, sizeof text, "error %d", error); return text; }
int nvmlSystemGetDriverVersion(char *out, unsigned size) { snprintf(out, size, "%s", driver); return OK; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    pthread_mutex_lock(&lock);
    load();
    *count = 0;
    for (int i = 0; i < gpu_count; i++) *count += !gpus[i].missing;
    pthread_mutex_unlock(&lock);
    return init_error;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    unsigned seen = 0;
    for (int i = 0; i < gpu_count; i++) {
        if (gpus[i].missing) continue;
        if (seen++ != index) continue;
        if (gpus[i].index_error) return gpus[i].index_error;
        *handle = (void *)(size_t)(i + 1);
        return OK;
    }
    return INVALID;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    for (int i = 0; i < gpu_count; i++)
        if (!strcmp(gpus[i].uuid, uuid)) {
            if (gpus[i].missing) return NOT_FOUND;
            if (gpus[i].index_error) return gpus[i].index_error;
            *handle = (void *)(size_t)(i + 1);
            return OK;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(void *handle, char *out, unsigned size) {
    int at = place(handle);
    if (at < 0 || at >= gpu_count) return INVALID;
    double v;
    int e = ask(at, "nvmlDeviceGetUUID", &v);
    if (e && e != NOT_SUPPORTED) return e;
    snprintf(out, size, "%s", gpus[at].uuid);
    return OK;
}

int nvmlDeviceGetName(void *handle, char *out, unsigned size) {
    int step = (int)((size_t)handle / 1000);
    if (step) snprintf(out, size, "NVIDIA H100 MIG %s", gpus[place(handle)].mig[step - 1].profile);
    else snprintf(out, size, "NVIDIA H100 80GB HBM3");
    return OK;
}

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci;
int nvmlDeviceGetPciInfo_v3(void *handle, pci *out) {
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", 0x1B + 0x10 * place(handle));
    return OK;
}

NUMBER(nvmlDeviceGetPowerUsage, "nvmlDeviceGetPowerUsage", unsigned)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "nvmlDeviceGetEnforcedPowerLimit", unsigned)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, "nvmlDeviceGetCurrentClocksThrottleReasons", unsigned long long)
#ifndef OLD_LIBRARY
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, "nvmlDeviceGetCurrentClocksEventReasons", unsigned long long)
#endif
NUMBER(nvmlDeviceGetPcieReplayCounter, "nvmlDeviceGetPcieReplayCounter", unsigned)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "nvmlDeviceGetCurrPcieLinkGeneration", unsigned)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "nvmlDeviceGetMaxPcieLinkGeneration", unsigned)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "nvmlDeviceGetCurrPcieLinkWidth", unsigned)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "nvmlDeviceGetMaxPcieLinkWidth", unsigned)
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, "nvmlDeviceGetRetiredPagesPendingStatus", unsigned)

int nvmlDeviceGetTemperature(void *handle, unsigned sensor, unsigned *out) {
    double v; int e = ask(place(handle), "nvmlDeviceGetTemperature", &v); (void)sensor;
    if (!e) *out = (unsigned)v;
    return e;
}
int nvmlDeviceGetMarginTemperature(void *handle, int *out) {
    double v; int e = ask(place(handle), "nvmlDeviceGetMarginTemperature", &v);
    if (!e) out[1] = (int)v;
    return e;
}
int nvmlDeviceGetTotalEccErrors(void *handle, unsigned kind, unsigned counter, unsigned long long *out) {
    const char *calls[2][2] = {{"ecc_corrected", "ecc_lifetime_corrected"}, {"ecc_uncorrected", "ecc_lifetime_uncorrected"}};
    double v; int e = ask(place(handle), calls[kind & 1][counter & 1], &v);
    if (!e) *out = (unsigned long long)v;
    return e;
}
int nvmlDeviceGetRemappedRows(void *handle, unsigned *corr, unsigned *unc, unsigned *pending, unsigned *failure) {
    double v;
    int e = ask(place(handle), "remap_failure", &v);
    if (e) return e;
    *failure = (unsigned)v;
    *corr = *unc = *pending = 0;
    if (!ask(place(handle), "remap_pending", &v)) *pending = (unsigned)v;
    return OK;
}
typedef struct { unsigned long long total, free, used; } memory;
int nvmlDeviceGetMemoryInfo(void *handle, memory *out) {
    int step = (int)((size_t)handle / 1000);
    if (step) {
        mig *m = &gpus[place(handle)].mig[step - 1];
        *out = (memory){m->used + m->free, m->free, m->used};
        return OK;
    }
    double v; int e = ask(place(handle), "memory_used", &v);
    if (!e) *out = (memory){80ull << 30, (80ull << 30) - (unsigned long long)v, (unsigned long long)v};
    return e;
}
int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    int at = place(handle);
    double v; int e = ask(at, "nvmlDeviceGetMigMode", &v);
    if (e == NOT_SUPPORTED && gpus[at].migs) { e = OK; v = 1; }
    if (!e) *current = *pending = (unsigned)v;
    return e;
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) { (void)handle; *count = MOST_MIG; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **out) {
    if ((int)index >= gpus[place(handle)].migs) return NOT_FOUND;
    *out = (void *)((size_t)handle + 1000 * (index + 1));
    return OK;
}
int nvmlDeviceGetGpuInstanceId(void *handle, unsigned *out) {
    *out = gpus[place(handle)].mig[(size_t)handle / 1000 - 1].id;
    return OK;
}
int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, unsigned *out) { (void)a; (void)b; *out = 20; return OK; }

int nvmlDeviceGetFieldValues(void *handle, int count, field_record *values) {
    double v;
    int whole = ask(place(handle), "nvmlDeviceGetFieldValues", &v);
    if (whole && whole != NOT_SUPPORTED) return whole;
    for (int i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "field %u", values[i].id);
        values[i].result = (unsigned)ask(place(handle), name, &v);
        values[i].type = 3;
        values[i].value = values[i].result ? 0 : (unsigned long long)v;
    }
    return OK;
}

int nvmlEventSetCreate(void **set) { *set = (void *)1; return OK; }
int nvmlEventSetFree(void *set) { (void)set; return OK; }
int nvmlDeviceGetSupportedEventTypes(void *handle, unsigned long long *types) {
    double v; int e = ask(place(handle), "nvmlDeviceGetSupportedEventTypes", &v);
    *types = e ? 0x8008 : (unsigned long long)v;
    return e == NOT_SUPPORTED ? OK : e;
}
int nvmlDeviceRegisterEvents(void *handle, unsigned long long types, void *set) { (void)handle; (void)types; (void)set; return OK; }
int nvmlEventSetWait_v2(void *set, event_record *out, unsigned ms) {
    (void)set;
    double until = now() + ms / 1e3;
    while (now() < until) {
        pthread_mutex_lock(&lock);
        load();
        for (int i = 0; i < event_count; i++)
            if (events[i].due <= now()) {
                *out = (event_record){(void *)(size_t)(events[i].gpu + 1), events[i].type, events[i].data, 0xFFFFFFFF, 0xFFFFFFFF};
                events[i] = events[--event_count];
                pthread_mutex_unlock(&lock);
                return OK;
            }
        pthread_mutex_unlock(&lock);
        usleep(10000);
    }
    return TIMEOUT;
}
