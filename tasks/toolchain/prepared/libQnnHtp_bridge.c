/* The bridge between ExecuTorch and a QNN release whose structure of the HTP device's configuration is another one.
 *
 * ExecuTorch passes {option, value, value}. Some releases read the values four bytes later: {option, unused, value,
 * value}. This library has the file name of Qualcomm's libQnnHtp.so, opens Qualcomm's own, unchanged, in the subfolder
 * `bridged` of its folder, and passes each call on. It changes a copy of the configuration that deviceCreate gets.
 *
 * Its SONAME is Qualcomm's, and it is linked with -z nodelete: ExecuTorch opens the library by its path, closes it, and
 * opens it again by its name. The linker then takes the first loaded library of that SONAME.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Enough for the functions of QNN's interface up to core API 2.40. ExecuTorch reads a part of them. */
#define FUNCTIONS 80
#define DEVICE_CREATE 40
#define CUSTOM 0
#define MOST_CONFIGS 16
#define QNN_COMMON_ERROR_SYSTEM 1003

typedef struct {
  uint32_t backend;
  const char *name;
  uint32_t versions[6];
  void *functions[FUNCTIONS];
} Provider;

typedef struct {
  uint32_t option;
  void *value;
} Config;

typedef struct {
  uint32_t option;
  uint32_t values[3];
} Custom;

typedef uint64_t (*GetProviders)(const Provider ***providers, uint32_t *count);
typedef uint64_t (*DeviceCreate)(void *log, const Config **configs, void **device);

static Provider provider;
static DeviceCreate device_create;

static void *qualcomms_library(void) {
  static void *library;
  Dl_info self;
  char path[4096];
  if (library == NULL && dladdr((void *)&provider, &self) != 0) {
    const char *end = strrchr(self.dli_fname, '/');
    int length = end == NULL ? 0 : (int)(end - self.dli_fname + 1);
    snprintf(path, sizeof path, "%.*sbridged/libQnnHtp.so", length, self.dli_fname);
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) fprintf(stderr, "qnnsweep's bridge: %s\n", dlerror());
  }
  return library;
}

static void *function_of(const char *name) {
  void *library = qualcomms_library();
  return library == NULL ? NULL : dlsym(library, name);
}

static uint64_t bridged_device_create(void *log, const Config **configs, void **device) {
  Config changed[MOST_CONFIGS];
  Custom customs[MOST_CONFIGS];
  const Config *passed[MOST_CONFIGS + 1];
  int count = 0;
  for (; configs != NULL && configs[count] != NULL; count++) {
    if (count == MOST_CONFIGS) return QNN_COMMON_ERROR_SYSTEM;
    changed[count] = *configs[count];
    if (changed[count].option == CUSTOM && changed[count].value != NULL) {
      const uint32_t *words = changed[count].value;
      customs[count] = (Custom){words[0], {words[1], words[1], words[2]}};
      changed[count].value = &customs[count];
    }
    passed[count] = &changed[count];
  }
  passed[count] = NULL;
  return device_create(log, configs == NULL ? NULL : passed, device);
}

uint64_t QnnInterface_getProviders(const Provider ***providers, uint32_t *count) {
  static const Provider *list[1] = {&provider};
  GetProviders get = (GetProviders)function_of("QnnInterface_getProviders");
  const Provider **qualcomms;
  uint64_t error = get == NULL ? QNN_COMMON_ERROR_SYSTEM : get(&qualcomms, count);
  if (error != 0) return error;
  memcpy(&provider, qualcomms[0], sizeof provider);
  device_create = (DeviceCreate)provider.functions[DEVICE_CREATE];
  provider.functions[DEVICE_CREATE] = (void *)bridged_device_create;
  *providers = list;
  *count = 1;
  return 0;
}

/* The other functions that Qualcomm's library exports with C names, for libraries that look them up. */
#define PASS_ON(name)                                                                                  \
  uint64_t name(void *a, void *b, void *c, void *d, void *e, void *f) {                                \
    uint64_t (*function)(void *, void *, void *, void *, void *, void *);                              \
    function = (uint64_t (*)(void *, void *, void *, void *, void *, void *))function_of(#name);       \
    return function == NULL ? QNN_COMMON_ERROR_SYSTEM : function(a, b, c, d, e, f);                    \
  }
PASS_ON(QnnGraphTransformer_addGraphTensor)
PASS_ON(QnnGraphTransformer_addNode)
PASS_ON(QnnGraphTransformer_createGraph)
PASS_ON(QnnGraphTransformer_finalizeGraph)
PASS_ON(QnnGraphTransformer_free)
