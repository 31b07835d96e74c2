/* Local SGD of chains of layers, one client after the other, and evaluation; `engine.py` calls it. */

#include "batches.h"
#include "implicit.h"
#include "loss.h"
#include <time.h>

typedef struct {
    double rate, momentum, decay, clip; /* clip: of the norm of a gradient, not positive where it is not clipped */
    const float *pull;                  /* (clients,) or 0 */
    const float *shift;                 /* (clients x numbers of the flat vector) or 0 */
    const float *added;                 /* (clients x classes) to the logits, or 0 */
} UpdateRule;

typedef struct {
    int64_t batch;
    const int64_t *steps;           /* (clients,) */
    int64_t drop_last;              /* whether an epoch leaves out a last batch that is not full */
    const int64_t *order, *offsets; /* client i owns order[offsets[i]] to order[offsets[i + 1]] */
    int64_t count;
    uint32_t *words;      /* (count,) of the generators, of which the last is replaced by the client */
    int64_t dropout;      /* the word of its purpose, third from the last, for what is dropped; -1: nothing is */
} Batches;

/* W <- W - rate v, v <- momentum v + clipped(g + pull (W - start) + shift) + decay W. */
static void follow(
    const UpdateRule *rule, float pull, int64_t n, float *weights, const float *start, const float *shift, float *g,
    float *velocity)
{
    float rate = (float)rule->rate, momentum = (float)rule->momentum, decay = (float)rule->decay, factor = 1;
    double square = 0;
    for (int64_t i = 0; i < n; i++) g[i] += fused(pull, weights[i] - start[i], shift ? shift[i] : 0);
    if (rule->clip > 0) {
        for (int64_t i = 0; i < n; i++) square += (double)g[i] * g[i];
        double norm = sqrt(square);
        if (!(norm <= rule->clip)) factor = (float)(rule->clip / norm);
    }
    for (int64_t i = 0; i < n; i++) {
        float move = fused(g[i], factor, decay * weights[i]);
        if (velocity) velocity[i] = move = fused(momentum, velocity[i], move);
        weights[i] = fused(-rate, move, weights[i]);
    }
}

/* Where training stands between two calls; all zeros at first. */
typedef struct {
    int64_t client, step, seen; /* clients that are done; steps and examples of the next one that are */
    double loss;                /* which these add up to */
    Generator generator;        /* of its batches */
} Progress;

/* When to return; the time is asked for after `look` steps. */
typedef struct {
    double until;
    int64_t look, since;
} Pause;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int over(Pause *pause)
{
    if (++pause->since < pause->look) return 0;
    pause->since = 0;
    return now() >= pause->until;
}

typedef struct {
    Model model;
    Implicit layer0;
    float *start, *weights, *gradient, *shift, *velocity;
} Work;

/* Lay out what clients need whose batches have at most `batch` examples, and all their batches at most `most`. */
static Work laid(
    int64_t count, const Layer *layers, const UpdateRule *rule, int64_t batch, int64_t most, Memory *memory)
{
    Work work = {.model = laid_out(count, layers, batch, memory)};
    int64_t n = work.model.numbers;
    int plain = !rule->pull && !rule->shift && rule->momentum == 0 && rule->decay == 0 && rule->clip <= 0;
    work.layer0 = implicit_for(&work.model, batch, most, plain, memory);
    work.start = take(memory, n);
    work.weights = take(memory, n);
    if (!plain) work.gradient = take(memory, n);
    if (rule->shift) work.shift = take(memory, n);
    if (rule->momentum != 0) work.velocity = take(memory, n);
    return work;
}

/* Numbers of working memory that `train` needs. */
int64_t memory_numbers(int64_t count, const Layer *layers, const UpdateRule *rule, int64_t batch, int64_t most)
{
    Memory memory = {0};
    laid(count, layers, rule, batch, most, &memory);
    return memory.used;
}

/* A client's samples, and the steps that they are for. */
typedef struct {
    const int64_t *samples;
    int64_t size, batch, kept, per_epoch, steps;
} Share;

static Share share_of(const Batches *batches, int64_t id, int64_t steps)
{
    int64_t begin = batches->offsets[id], size = batches->offsets[id + 1] - begin;
    int64_t batch = size < batches->batch ? size : batches->batch;
    int64_t kept = batches->drop_last ? size - size % batch : size, per_epoch = (kept + batch - 1) / batch;
    return (Share){batches->order + begin, size, batch, kept, per_epoch, steps};
}

/* Go on with a client from where it was left; return whether it is done, or time was up before. Meanwhile its weights
   wait in `work`, and the batches of its epoch in `room`. */
static int train_one(
    const Work *work, const Samples *samples, const UpdateRule *rule, float pull, const float *added, Draws *draws,
    const Share *own, int64_t *room, Progress *at, Pause *pause, float *flat, int8_t *finite)
{
    const Model *model = &work->model;
    int64_t batch = own->batch, steps = own->steps;
    int implicit = steps <= work->layer0.room / batch, first = implicit ? 1 : 0;
    int64_t from = model->begin[first], together = implicit ? steps : own->per_epoch; /* steps whose batches are drawn */
    float rate = (float)rule->rate, *weights = work->weights;
    if (at->step == 0) {
        memcpy(weights + from, work->start + from, sizeof *weights * (model->numbers - from));
        if (work->velocity) memset(work->velocity, 0, sizeof *weights * model->numbers);
    }
    while (at->step < steps) {
        int64_t m = batch, next = at->step % together, left = steps - at->step;
        const int64_t *plan = room + own->size + next * batch;
        if (next == 0)
            draw_epochs(
                &at->generator, own->size, own->samples, batch, own->per_epoch, left < together ? left : together, room,
                room + own->size);
        if (implicit && at->step == 0) begin_implicit(model, &work->layer0, samples, work->start, steps, batch, plan);
        if (draws) draws->step = at->step;
        while (plan[m - 1] < 0) m--;
        if (implicit) forward_implicit(model, &work->layer0, at->seen, m, rate);
        else gather_inputs(model, samples, m, plan);
        forward(model, first, weights, m, draws);
        at->loss += errors(model, m, plan, samples->labels, added);
        if (work->gradient) {
            backward(model, 0, weights, work->gradient, m, 1.0f, 0, draws);
            follow(rule, pull, model->numbers, weights, work->start, work->shift, work->gradient, work->velocity);
        } else /* the gradient is never stored */
            backward(model, first, weights, weights, m, -rate, 1, draws);
        if (implicit) backward_implicit(model, &work->layer0, at->seen, m);
        at->seen += m;
        if (++at->step < steps && over(pause)) return 0; /* each call makes a step */
    }
    *finite = write_move(model, first, weights, work->start, flat);
    if (implicit) *finite &= write_implicit(model, &work->layer0, at->seen, rate, flat);
    wait_for_copies();
    return 1;
}

/* Train clients from `start`; write how far each moved into its row of `update` and whether that is finite, how many
   steps it takes, and its mean loss. Room for numbers is needed for the largest of them: its examples, and the batches
   of one of its epochs, or of all its steps where the first layer is not formed.

   Return 1 when all are done; 0 after so many seconds, to be called again with the same arguments and memory: a caller
   hears signals between two calls. Where training is left changes no number. Of `look` steps one asks for the time. */
int64_t train(
    int64_t count, const Layer *layers, const Samples *samples, const UpdateRule *rule, const Batches *batches,
    int64_t most, int64_t clients, const int64_t *ids, const float *start, float *memory, int64_t *room, int64_t d,
    const int64_t *row, float *update, int8_t *finite, double *loss, int64_t *taken, Progress *at, int64_t look,
    double seconds)
{
    Memory laid_in = {.begin = memory};
    Work work = laid(count, layers, rule, batches->batch, most, &laid_in);
    Pause pause = {.until = now() + seconds, .look = look};
    bring(&work.model, start, work.start);
    while (at->client < clients) {
        int64_t client = at->client;
        Share own = share_of(batches, ids[client], batches->steps[client]);
        uint32_t *words = batches->words, purpose = words[batches->count - 3];
        Draws draws;
        words[batches->count - 1] = (uint32_t)ids[client];
        if (batches->dropout >= 0) {
            words[batches->count - 3] = (uint32_t)batches->dropout;
            key_of(batches->count, words, draws.key);
            words[batches->count - 3] = purpose;
        }
        if (at->step == 0) at->generator = seeded(batches->count, words);
        if (work.shift) bring(&work.model, rule->shift + client * d, work.shift);
        float pull = rule->pull ? rule->pull[client] : 0;
        const float *added = rule->added ? rule->added + client * work.model.classes : 0;
        if (!train_one(
                &work, samples, rule, pull, added, batches->dropout < 0 ? 0 : &draws, &own, room, at, &pause,
                update + row[client] * d, finite + client))
            return 0;
        int64_t whole = own.steps / own.per_epoch, rest = own.steps - whole * own.per_epoch;
        loss[client] = at->loss / (double)(whole * own.kept + rest * own.batch);
        taken[client] = own.steps;
        at->step = at->seen = 0;
        at->loss = 0;
        if (++at->client < clients && over(&pause)) return 0;
    }
    return 1;
}

/* ------------------------------------------------------------------------------------------------- evaluation */

enum { ABOUT = 64, ABOUT_OF_TOKENS = 24 }; /* examples at a time: recurrent layers keep all times of each */

static int64_t about(const Layer *layers) { return layers->kind == EMBEDDING ? ABOUT_OF_TOKENS : ABOUT; }

/* Numbers of working memory that `predict` needs. */
int64_t memory_for_predicting(int64_t count, const Layer *layers)
{
    Memory memory = {0};
    Model model = laid_out(count, layers, about(layers), &memory);
    take(&memory, model.numbers);
    return memory.used;
}

/* Write for each of m samples whether a model, a flat vector, is right, and its loss; and its logits, where `logits`.
   Return how many are done, the first of them: all, or those that were when so many seconds had passed. */
int64_t predict(
    int64_t count, const Layer *layers, const Samples *samples, int64_t m, const int64_t *sample, const float *flat,
    float *given, int8_t *right, float *loss, float *logits, double seconds)
{
    Memory memory = {.begin = given};
    double until = now() + seconds;
    Model model = laid_out(count, layers, about(layers), &memory);
    float *weights = take(&memory, model.numbers), sum;
    int64_t classes = model.classes, wide = padded(classes);
    bring(&model, flat, weights);
    for (int64_t begin = 0; begin < m; begin += about(layers)) {
        int64_t some = m - begin < about(layers) ? m - begin : about(layers);
        gather_inputs(&model, samples, some, sample + begin);
        forward(&model, 0, weights, some, 0);
        for (int64_t i = 0; i < some; i++) {
            const float *z = model.x[count] + i * wide;
            int64_t label = samples->labels[sample[begin + i]], best = 0;
            if (logits) memcpy(logits + (begin + i) * classes, z, sizeof *z * classes);
            for (int64_t j = 1; j < classes; j++) /* as torch does, what is no number counts as the largest */
                if (z[j] > z[best] || (z[j] != z[j] && z[best] == z[best])) best = j;
            right[begin + i] = best == label;
            loss[begin + i] = loss_of(classes, z, label, model.dx[count], &sum);
        }
        if (now() >= until) return begin + some;
    }
    return m;
}
