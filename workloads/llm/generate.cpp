// SPDX-License-Identifier: GPL-2.0-only
/*
 * generate: a llama.cpp tool with llama-completion's options. It takes the likeliest token
 * (--temp 0), continues after an end token (--ignore-eos) and never warms up.
 *
 * Per token it prints the token and a hash of all logits, bit by bit. Each weight is part
 * of each logit, so a wrong byte shows that the choice of a token would hide.
 */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "llama.h"

[[noreturn]] static void die(const std::string &sentence)
{
	fprintf(stderr, "generate: %s\n", sentence.c_str());
	exit(1);
}

static int parse_count(const std::string &option, const char *text)
{
	char *end;
	long value = text ? strtol(text, &end, 10) : 0;

	if (!text || end == text || *end || value < 1 || value > 1 << 20)
		die(option + " needs a whole number from 1.");
	return (int)value;
}

static uint64_t hash_logits(const float *logits, int count)
{
	uint64_t hash = 0xcbf29ce484222325;	/* FNV-1a, a logit at a time */

	for (int i = 0; i < count; i++) {
		uint32_t bits;

		memcpy(&bits, &logits[i], sizeof(bits));
		hash = (hash ^ bits) * 0x100000001b3;
	}
	return hash;
}

/* llama.cpp's description of a model fills a page. */
static void log_errors(enum ggml_log_level level, const char *text, void *)
{
	if (level == GGML_LOG_LEVEL_ERROR)
		fputs(text, stderr);
}

int main(int argc, char **argv)
{
	std::string weights, prompt;
	int tokens = 8, threads = 1, context = 64, batch = 16;

	for (int i = 1; i < argc; i++) {
		const std::string option = argv[i];
		const char *value = i + 1 < argc ? argv[i + 1] : nullptr;

		if (option == "-no-cnv" || option == "--no-warmup" ||
		    option == "--ignore-eos")
			continue;
		if (option == "-m" && value)
			weights = value;
		else if (option == "-p" && value)
			prompt = value;
		else if (option == "-n")
			tokens = parse_count(option, value);
		else if (option == "-t")
			threads = parse_count(option, value);
		else if (option == "-c")
			context = parse_count(option, value);
		else if (option == "-b")
			batch = parse_count(option, value);
		else if (option == "--temp" && value && !strcmp(value, "0"))
			;
		else
			die("There is no option " + option + ", or no such value.");
		i++;
	}
	if (weights.empty())
		die("usage: generate -m WEIGHTS [-p PROMPT] [-n TOKENS] [-t THREADS] [-c CONTEXT] [-b BATCH]");

	llama_log_set(log_errors, nullptr);
	llama_backend_init();
	llama_model *model = llama_model_load_from_file(
		weights.c_str(), llama_model_default_params());
	if (!model)
		die("The weights cannot be loaded.");
	const llama_vocab *vocab = llama_model_get_vocab(model);

	std::vector<llama_token> input(prompt.size() + 8);
	int count = llama_tokenize(vocab, prompt.data(), (int)prompt.size(),
				   input.data(), (int)input.size(), true, false);
	if (count < 1 || count > batch || count + tokens > context)
		die("The prompt has no tokens, or too many.");

	llama_context_params params = llama_context_default_params();
	params.n_ctx = context;
	params.n_batch = batch;
	params.n_ubatch = batch;
	params.n_threads = threads;
	params.n_threads_batch = threads;
	llama_context *ctx = llama_init_from_model(model, params);
	if (!ctx)
		die("The context cannot be made.");

	const int choices = llama_vocab_n_tokens(vocab);
	llama_batch next = llama_batch_get_one(input.data(), count);
	llama_token token;
	for (int i = 0; i < tokens; i++) {
		if (llama_decode(ctx, next))
			die("A token cannot be computed.");
		const float *logits = llama_get_logits_ith(ctx, -1);
		if (!logits)
			die("There are no logits.");
		token = 0;
		for (int j = 0; j < choices; j++) {
			if (logits[j] != logits[j])
				die("A logit is no number.");
			if (logits[j] > logits[token])
				token = j;
		}
		printf("%d:%016llx\n", token,
		       (unsigned long long)hash_logits(logits, choices));
		next = llama_batch_get_one(&token, 1);
	}
	llama_free(ctx);
	llama_model_free(model);
	llama_backend_free();
	return 0;
}
