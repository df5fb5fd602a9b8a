"""Trains a small model that writes as the demo model does, and has its tokenizer, to propose its tokens
(arXiv:2211.17192).

    python3 demo/train_draft.py --out DIR [--minutes 12]    # on a CPU

It learns the probabilities that the model gives. Its embeddings begin as what is nearest to the model's in so few
dimensions. It needs PyTorch, NumPy, SentencePiece and safetensors.
"""

import torch
import torch.nn.functional as F

import tokens as text
from distill import compare, hidden_states, load_model, options, read, train, within_documents, write
from model import Llama, Shape

SHAPE = Shape(hidden=128, n_layers=2, n_heads=4, n_kv_heads=2, ffn_hidden=384)


def draft_of(model):
    draft = Llama(SHAPE)
    with torch.no_grad():
        u, sizes, _ = torch.linalg.svd(model.embed.weight, full_matrices=False)
        draft.embed.weight.copy_(u[:, :SHAPE.hidden] * sizes[:SHAPE.hidden])
    return draft


def main():
    o = options()
    model, _ = load_model()
    draft = draft_of(model)

    def losses(_, tokens, hidden):
        states = hidden_states(draft, tokens, within_documents(tokens))
        rows = tokens != text.UNK
        return [compare(model, F.linear(states[rows], draft.embed.weight), hidden[rows])]

    def save():
        write(o.out, draft.hf_tensors(), hidden_size=SHAPE.hidden, intermediate_size=SHAPE.ffn_hidden,
              num_hidden_layers=SHAPE.n_layers, num_attention_heads=SHAPE.n_heads,
              num_key_value_heads=SHAPE.n_kv_heads)

    train(draft, losses, read(model, o), o, save)


if __name__ == "__main__":
    main()
