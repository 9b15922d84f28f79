/* One run of a graph: a thread for each lane, because a device runs lanes concurrently. */
#include "cuda_stub.h"

#include <stdlib.h>

typedef struct graph_run {
    stub_capture *capture; /* borrowed: the run waits for all lanes */
    void **launched;
    bool *is_done; /* by node; under cuda_lock */
    int nlanes_left;
} graph_run;

typedef struct lane_run {
    graph_run *run;
    int lane;
} lane_run;

static void
run_node(graph_run *run, int index)
{
    const stub_node *node = &run->capture->nodes[index];
    pthread_mutex_lock(&cuda_lock);
    while (node->after >= 0 && !run->is_done[node->after]) {
        pthread_cond_wait(&cuda_changed, &cuda_lock);
    }
    pthread_mutex_unlock(&cuda_lock);
    if (node->work.run != NULL) {
        node->work.run(node->work.ctx, run->launched[index]);
    }
    pthread_mutex_lock(&cuda_lock);
    run->is_done[index] = true;
    pthread_cond_broadcast(&cuda_changed);
    pthread_mutex_unlock(&cuda_lock);
}

static void
run_lane(graph_run *run, int lane)
{
    for (int i = 0; i < run->capture->nnodes; i++) {
        if (run->capture->nodes[i].lane == lane) {
            run_node(run, i);
        }
    }
    pthread_mutex_lock(&cuda_lock);
    run->nlanes_left--;
    pthread_cond_broadcast(&cuda_changed);
    pthread_mutex_unlock(&cuda_lock);
}

static void *
serve_lane(void *arg)
{
    lane_run own = *(lane_run *)arg;
    free(arg);
    run_lane(own.run, own.lane);
    return NULL;
}

void
capture_run(stub_capture *capture, void **launched)
{
    graph_run run = {
        .capture = capture,
        .launched = launched,
        .is_done = stub_zalloc((size_t)capture->nnodes),
        .nlanes_left = capture->nlanes,
    };
    for (int lane = 1; lane < capture->nlanes; lane++) {
        lane_run *own = stub_zalloc(sizeof *own);
        *own = (lane_run){.run = &run, .lane = lane};
        stub_thread_start("cuda-graph", serve_lane, own);
    }
    run_lane(&run, 0);
    pthread_mutex_lock(&cuda_lock);
    while (run.nlanes_left > 0) {
        pthread_cond_wait(&cuda_changed, &cuda_lock);
    }
    pthread_mutex_unlock(&cuda_lock);
    free(run.is_done);
}
