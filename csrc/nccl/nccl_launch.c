#include "nccl/nccl_internal.h"
