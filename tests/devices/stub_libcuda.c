/* The calls of libcuda that transferqueue makes, on memory of the host: two devices, copies that are
   done at once, handles that other processes open through /proc. It shows that arguments go over the
   ABI as documented, and nothing about hardware. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEVICES 2
#define BLOCKS 256
#define TOTAL ((size_t)64 << 20)

typedef struct { unsigned char reserved[64]; } Handle;
typedef struct { int pid, fd; size_t size; ino_t inode; } Token;
typedef struct { void *at; size_t size; int fd, opens, device; } Block;

static Block blocks[BLOCKS];
static int initialized, current = -1, stack[64], depth, retained[DEVICES], peers[DEVICES][DEVICES];
static int num_events, num_streams;
static char names[1 << 20]; /* each event and stream is one of these */
static int num_names;

enum { OK, INVALID_VALUE = 1, NO_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101,
       INVALID_CONTEXT = 201, INVALID_HANDLE = 400, PEER_ENABLED = 704 };

static Block *find(uint64_t at, size_t size) {
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].at && at >= (uint64_t)blocks[i].at &&
            at + size <= (uint64_t)blocks[i].at + blocks[i].size) return &blocks[i];
    return NULL;
}
static Block *empty(void) {
    for (int i = 0; i < BLOCKS; i++) if (!blocks[i].at) return &blocks[i];
    return NULL;
}
static size_t used(void) {
    size_t sum = 0;
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].at && !blocks[i].opens && blocks[i].device == current) sum += blocks[i].size;
    return sum;
}

int cuInit(unsigned flags) { initialized = 1; return flags ? INVALID_VALUE : OK; }
int cuGetErrorName(int status, const char **name) {
    *name = status == INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT" : "CUDA_ERROR"; return OK; }
int cuGetErrorString(int status, const char **text) { *text = "as the stub says"; return OK; }
int cuDeviceGetCount(int *count) { *count = DEVICES; return initialized ? OK : NOT_INITIALIZED; }
int cuDeviceGet(int *device, int ordinal) {
    if (ordinal < 0 || ordinal >= DEVICES) return INVALID_DEVICE;
    *device = 40 + ordinal; return OK; }
int cuDeviceGetUuid(unsigned char *uuid, int device) { /* of the whole GPU, for slices of it */
    memset(uuid, 255, 16); return device < 40 ? INVALID_DEVICE : OK; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    for (int i = 0; i < 16; i++) uuid[i] = (unsigned char)(16 * (device - 40) + i);
    return OK; }
int cuDeviceCanAccessPeer(int *can, int device, int peer) { *can = device != peer; return OK; }
int cuDevicePrimaryCtxRetain(void **context, int device) {
    retained[device - 40]++; *context = &retained[device - 40]; return OK; }
int cuDevicePrimaryCtxRelease_v2(int device) {
    return retained[device - 40]-- > 0 ? OK : INVALID_CONTEXT; }
int cuCtxPushCurrent_v2(void *context) {
    int device = (int)((int *)context - retained);
    if (device < 0 || device >= DEVICES || !retained[device] || depth == 64) return INVALID_CONTEXT;
    stack[depth++] = current; current = device; return OK; }
int cuCtxPopCurrent_v2(void **context) {
    if (!depth) return INVALID_CONTEXT;
    *context = &retained[current]; current = stack[--depth]; return OK; }
int cuCtxEnablePeerAccess(void *context, unsigned flags) {
    int peer = (int)((int *)context - retained);
    if (current < 0 || peer == current || flags) return INVALID_VALUE;
    if (peers[current][peer]) return PEER_ENABLED;
    peers[current][peer] = 1; return OK; }

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    if (current < 0) return INVALID_CONTEXT;
    *total = TOTAL; *free_bytes = TOTAL - used(); return OK; }
int cuMemAlloc_v2(uint64_t *pointer, size_t size) {
    Block *block = empty();
    if (current < 0) return INVALID_CONTEXT;
    if (!size || !block) return INVALID_VALUE;
    if (size > TOTAL - used()) return NO_MEMORY;
    int fd = memfd_create("stub-cuda", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)size)) return NO_MEMORY;
    block->at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    block->size = size; block->fd = fd; block->opens = 0; block->device = current;
    *pointer = (uint64_t)block->at; return OK; }
int cuMemFree_v2(uint64_t pointer) {
    Block *block = find(pointer, 0);
    if (current < 0) return INVALID_CONTEXT;
    if (!block || block->opens || (uint64_t)block->at != pointer) return INVALID_VALUE;
    munmap(block->at, block->size); close(block->fd); block->at = NULL; return OK; }
int cuIpcGetMemHandle(Handle *handle, uint64_t pointer) {
    Block *block = find(pointer, 0);
    struct stat found;
    if (current < 0) return INVALID_CONTEXT;
    if (!block || block->opens || fstat(block->fd, &found)) return INVALID_VALUE;
    if (block->size % ((size_t)2 << 20)) return INVALID_VALUE; /* others are on its pages */
    Token token = {getpid(), block->fd, block->size, found.st_ino};
    memset(handle, 0, sizeof *handle); memcpy(handle->reserved, &token, sizeof token); return OK; }
int cuIpcOpenMemHandle_v2(uint64_t *pointer, Handle handle, unsigned flags) {
    Token token; char path[64]; struct stat found;
    memcpy(&token, handle.reserved, sizeof token);
    if (current < 0) return INVALID_CONTEXT;
    if (flags != 1) return INVALID_VALUE;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", token.pid, token.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return INVALID_HANDLE;
    Block *block = empty();
    if (!block || fstat(fd, &found) || found.st_ino != token.inode) { close(fd); return INVALID_HANDLE; }
    block->at = mmap(NULL, token.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    block->size = token.size; block->fd = fd; block->opens = 1; block->device = current;
    *pointer = (uint64_t)block->at; return OK; }
int cuIpcCloseMemHandle(uint64_t pointer) {
    Block *block = find(pointer, 0);
    if (current < 0) return INVALID_CONTEXT;
    if (!block || !block->opens) return INVALID_VALUE;
    munmap(block->at, block->size); close(block->fd); block->at = NULL; return OK; }
int cuMemHostRegister_v2(void *at, size_t size, unsigned flags) {
    return current < 0 ? INVALID_CONTEXT : at && size && flags == 1 ? OK : INVALID_VALUE; }
int cuMemHostUnregister(void *at) { return current < 0 ? INVALID_CONTEXT : at ? OK : INVALID_VALUE; }

static int copy(void *to, const void *from, size_t size, void *stream, int ok) {
    if (current < 0 || !stream) return INVALID_CONTEXT;
    if (!ok) return INVALID_VALUE;
    memmove(to, from, size); return OK; }
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, void *stream) {
    return copy((void *)to, from, size, stream, find(to, size) != NULL); }
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *stream) {
    return copy(to, (void *)from, size, stream, find(from, size) != NULL); }
int cuMemcpyAsync(uint64_t to, uint64_t from, size_t size, void *stream) {
    return copy((void *)to, (void *)from, size, stream, find(to, size) && find(from, size)); }

int cuStreamCreate(void **stream, unsigned flags) {
    if (current < 0) return INVALID_CONTEXT;
    num_streams++; *stream = &names[num_names++]; return flags == 1 ? OK : INVALID_VALUE; }
int cuStreamDestroy_v2(void *stream) { num_streams--; return stream ? OK : INVALID_HANDLE; }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    return stream && event && !flags ? OK : INVALID_HANDLE; }
int cuEventCreate(void **event, unsigned flags) {
    if (current < 0) return INVALID_CONTEXT;
    num_events++; *event = &names[num_names++]; return flags == 2 ? OK : INVALID_VALUE; }
int cuEventRecord(void *event, void *stream) { return event && stream ? OK : INVALID_HANDLE; }
int cuEventQuery(void *event) { return event && current >= 0 ? OK : INVALID_HANDLE; }
int cuEventDestroy_v2(void *event) { num_events--; return event ? OK : INVALID_HANDLE; }

int stub_left(void) {
    int left = num_events + num_streams + depth;
    for (int i = 0; i < BLOCKS; i++) left += blocks[i].at != NULL;
    for (int i = 0; i < DEVICES; i++) left += retained[i];
    if (left) fprintf(stderr, "events %d, streams %d, contexts %d %d, depth %d\n", num_events,
                      num_streams, retained[0], retained[1], depth);
    return left; }
