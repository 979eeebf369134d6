// A PJRT plugin without a device: what it is asked for a client with, it says in the error with which it refuses.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct { size_t size; void* next; void* error; const char* message; size_t length; } Message;
typedef struct { size_t size; void* next; void* error; int code; } Code;
typedef struct { size_t size; void* next; const char* name; size_t length; int kind; union { const char* text; int64_t number; } value; size_t count; } Option;
typedef struct { size_t size; void* next; const Option* options; size_t count; } Create;
typedef struct { size_t size; void* next; const void* attributes; size_t count; } Attributes;

static char said[512];

static void* nothing(void* args) { return NULL; }
static void message(Message* args) { args->message = said; args->length = strlen(said); }
static void* code(Code* args) { args->code = 5; return NULL; }  // NOT_FOUND
static void* initialize(void* args) { return NULL; }
static void* attributes(Attributes* args) { args->attributes = NULL; args->count = 0; return NULL; }

static void* create(Create* args) {
  int at = snprintf(said, sizeof said, "the mock has no device;");
  for (size_t i = 0; i < args->count; i++) {
    const Option* o = &args->options[i];
    if (o->kind == 0) at += snprintf(said + at, sizeof said - at, " %.*s=%.*s", (int)o->length, o->name, (int)o->count, o->value.text);
    if (o->kind == 1) at += snprintf(said + at, sizeof said - at, " %.*s=%lld", (int)o->length, o->name, (long long)o->value.number);
  }
  return said;
}

static struct {
  size_t size; void* next;
  struct { size_t size; void* next; int major, minor; } version;
  void* functions[512];
} api;

const void* GetPjrtApi(void) {
  api.size = sizeof api;
  api.version.size = sizeof api.version;
  api.version.minor = 90;
  for (int i = 0; i < 512; i++) api.functions[i] = nothing;
  api.functions[1] = message;
  api.functions[2] = code;
  api.functions[3] = initialize;
  api.functions[4] = attributes;
  api.functions[10] = create;
  return &api;
}
